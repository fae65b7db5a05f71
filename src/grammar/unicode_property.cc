// \p{...}: general categories and a few simple properties, from utf8proc's tables.
#include <array>
#include <vector>

#include <utf8proc.h>

#include "grammar/regex_parser.h"

namespace deepinfer::grammar {
namespace {

struct Category {
  const char* short_name;
  const char* long_name;
  std::vector<utf8proc_category_t> members;
};

const std::vector<Category>& categories() {
  static const std::vector<Category> list = {
      {"Lu", "Uppercase_Letter", {UTF8PROC_CATEGORY_LU}},
      {"Ll", "Lowercase_Letter", {UTF8PROC_CATEGORY_LL}},
      {"Lt", "Titlecase_Letter", {UTF8PROC_CATEGORY_LT}},
      {"LC", "Cased_Letter", {UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LT}},
      {"Lm", "Modifier_Letter", {UTF8PROC_CATEGORY_LM}},
      {"Lo", "Other_Letter", {UTF8PROC_CATEGORY_LO}},
      {"L",
       "Letter",
       {UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LT, UTF8PROC_CATEGORY_LM, UTF8PROC_CATEGORY_LO}},
      {"Mn", "Nonspacing_Mark", {UTF8PROC_CATEGORY_MN}},
      {"Mc", "Spacing_Mark", {UTF8PROC_CATEGORY_MC}},
      {"Me", "Enclosing_Mark", {UTF8PROC_CATEGORY_ME}},
      {"M", "Mark", {UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MC, UTF8PROC_CATEGORY_ME}},
      {"Nd", "Decimal_Number", {UTF8PROC_CATEGORY_ND}},
      {"Nl", "Letter_Number", {UTF8PROC_CATEGORY_NL}},
      {"No", "Other_Number", {UTF8PROC_CATEGORY_NO}},
      {"N", "Number", {UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NL, UTF8PROC_CATEGORY_NO}},
      {"Pc", "Connector_Punctuation", {UTF8PROC_CATEGORY_PC}},
      {"Pd", "Dash_Punctuation", {UTF8PROC_CATEGORY_PD}},
      {"Ps", "Open_Punctuation", {UTF8PROC_CATEGORY_PS}},
      {"Pe", "Close_Punctuation", {UTF8PROC_CATEGORY_PE}},
      {"Pi", "Initial_Punctuation", {UTF8PROC_CATEGORY_PI}},
      {"Pf", "Final_Punctuation", {UTF8PROC_CATEGORY_PF}},
      {"Po", "Other_Punctuation", {UTF8PROC_CATEGORY_PO}},
      {"P",
       "Punctuation",
       {UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PD, UTF8PROC_CATEGORY_PS, UTF8PROC_CATEGORY_PE, UTF8PROC_CATEGORY_PI,
        UTF8PROC_CATEGORY_PF, UTF8PROC_CATEGORY_PO}},
      {"Sm", "Math_Symbol", {UTF8PROC_CATEGORY_SM}},
      {"Sc", "Currency_Symbol", {UTF8PROC_CATEGORY_SC}},
      {"Sk", "Modifier_Symbol", {UTF8PROC_CATEGORY_SK}},
      {"So", "Other_Symbol", {UTF8PROC_CATEGORY_SO}},
      {"S", "Symbol", {UTF8PROC_CATEGORY_SM, UTF8PROC_CATEGORY_SC, UTF8PROC_CATEGORY_SK, UTF8PROC_CATEGORY_SO}},
      {"Zs", "Space_Separator", {UTF8PROC_CATEGORY_ZS}},
      {"Zl", "Line_Separator", {UTF8PROC_CATEGORY_ZL}},
      {"Zp", "Paragraph_Separator", {UTF8PROC_CATEGORY_ZP}},
      {"Z", "Separator", {UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZL, UTF8PROC_CATEGORY_ZP}},
      {"Cc", "Control", {UTF8PROC_CATEGORY_CC}},
      {"Cf", "Format", {UTF8PROC_CATEGORY_CF}},
      {"Cs", "Surrogate", {UTF8PROC_CATEGORY_CS}},
      {"Co", "Private_Use", {UTF8PROC_CATEGORY_CO}},
      {"Cn", "Unassigned", {UTF8PROC_CATEGORY_CN}},
      {"C",
       "Other",
       {UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CF, UTF8PROC_CATEGORY_CS, UTF8PROC_CATEGORY_CO, UTF8PROC_CATEGORY_CN}},
  };
  return list;
}

// The code points of each general category, found once.
const std::array<CharSet, 32>& sets_by_category() {
  static const std::array<CharSet, 32> sets = [] {
    std::array<CharSet, 32> made;
    uint32_t begin = 0;
    for (uint32_t c = 1; c <= kMaxCodePoint + 1; ++c) {
      const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(begin));
      if (c <= kMaxCodePoint && utf8proc_category(static_cast<utf8proc_int32_t>(c)) == category) continue;
      made[static_cast<size_t>(category)].add(begin, c - 1);
      begin = c;
    }
    return made;
  }();
  return sets;
}

}  // namespace

Result<CharSet> unicode_property(std::string_view name) {
  if (name == "Any") return CharSet::all();
  if (name == "ASCII") return CharSet::range(0, 0x7f);
  if (name == "Assigned") return ~sets_by_category()[UTF8PROC_CATEGORY_CN];
  std::string_view value = name;
  for (std::string_view prefix : {"General_Category=", "gc="}) {
    if (value.starts_with(prefix)) value.remove_prefix(prefix.size());
  }
  for (const Category& c : categories()) {
    if (value != c.short_name && value != c.long_name) continue;
    CharSet set;
    for (utf8proc_category_t member : c.members) set = set | sets_by_category()[static_cast<size_t>(member)];
    return set;
  }
  return make_error(Code::kUnsupported,
                    "regular expression: the Unicode property \\p{{{}}} is not supported (general categories, Any, "
                    "ASCII and Assigned are)",
                    name);
}

}  // namespace deepinfer::grammar
