#include "grammar/json_format.h"

#include <algorithm>
#include <array>

namespace deepinfer::grammar {
namespace {

constexpr std::array<std::string_view, 10> kNames{"date-time", "date", "time", "duration", "email",
                                                  "hostname",  "ipv4", "ipv6", "uri",      "uuid"};

bool digit(char c) { return c >= '0' && c <= '9'; }
bool alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool alnum(char c) { return digit(c) || alpha(c); }
bool hex(char c) { return digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

// Reads exactly n digits at the front of s, or returns -1.
int take_number(std::string_view& s, size_t n) {
  if (s.size() < n) return -1;
  int v = 0;
  for (size_t i = 0; i < n; ++i) {
    if (!digit(s[i])) return -1;
    v = v * 10 + (s[i] - '0');
  }
  s.remove_prefix(n);
  return v;
}

bool take(std::string_view& s, char c) {
  if (s.empty() || s[0] != c) return false;
  s.remove_prefix(1);
  return true;
}

bool take_date(std::string_view& s) {
  int year = take_number(s, 4);
  if (year < 0 || !take(s, '-')) return false;
  int month = take_number(s, 2);
  if (month < 1 || month > 12 || !take(s, '-')) return false;
  int day = take_number(s, 2);
  static constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  return day >= 1 && day <= kDays[month - 1] + (month == 2 && leap);
}

bool time_of_day(std::string_view s) {
  int hour = take_number(s, 2);
  if (hour < 0 || hour > 23 || !take(s, ':')) return false;
  int minute = take_number(s, 2);
  if (minute < 0 || minute > 59 || !take(s, ':')) return false;
  int second = take_number(s, 2);
  if (second < 0 || second > 60) return false;
  if (take(s, '.')) {
    size_t n = 0;
    while (n < s.size() && digit(s[n])) ++n;
    if (n == 0) return false;
    s.remove_prefix(n);
  }
  int offset = 0;
  if (!take(s, 'Z') && !take(s, 'z')) {
    if (s.empty() || !one_of(s[0], "+-")) return false;
    int sign = s[0] == '+' ? 1 : -1;
    s.remove_prefix(1);
    int h = take_number(s, 2);
    if (h < 0 || h > 23 || !take(s, ':')) return false;
    int m = take_number(s, 2);
    if (m < 0 || m > 59) return false;
    offset = sign * (h * 60 + m);
  }
  int utc = ((hour * 60 + minute - offset) % 1440 + 1440) % 1440;
  return s.empty() && (second < 60 || utc == 1439);
}

bool date_time(std::string_view s) { return take_date(s) && (take(s, 'T') || take(s, 't')) && time_of_day(s); }

// RFC 3339 appendix A: units go down without a gap, and weeks stand alone.
bool duration(std::string_view s) {
  if (!take(s, 'P')) return false;
  auto run = [&](std::string_view units) {  // number+unit pairs, each unit the next of `units`; returns how many
    int n = 0;
    size_t at = std::string_view::npos;
    while (!s.empty() && digit(s[0])) {
      size_t i = 0;
      while (i < s.size() && digit(s[i])) ++i;
      size_t unit = i < s.size() ? units.find(s[i]) : std::string_view::npos;
      if (unit == std::string_view::npos || (n > 0 && unit != at + 1)) return -1;
      at = unit;
      s.remove_prefix(i + 1);
      ++n;
    }
    return n;
  };
  std::string_view start = s;
  if (run("W") == 1 && s.empty()) return true;
  s = start;
  int days = run("YMD");
  if (days < 0) return false;
  if (s.empty()) return days > 0;
  return take(s, 'T') && run("HMS") > 0 && s.empty();
}

bool hostname(std::string_view s) {
  if (s.empty() || s.size() > 253) return false;
  while (true) {
    size_t end = std::min(s.find('.'), s.size());
    std::string_view label = s.substr(0, end);
    if (label.empty() || label.size() > 63 || label.front() == '-' || label.back() == '-') return false;
    if (!std::all_of(label.begin(), label.end(), [](char c) { return alnum(c) || c == '-'; })) return false;
    if (end == s.size()) return true;
    s.remove_prefix(end + 1);
  }
}

bool ipv4(std::string_view s) {
  for (int part = 0; part < 4; ++part) {
    if (part && !take(s, '.')) return false;
    size_t n = 0;
    while (n < s.size() && n < 4 && digit(s[n])) ++n;
    if (n == 0 || n > 3 || (n > 1 && s[0] == '0')) return false;
    if (take_number(s, n) > 255) return false;
  }
  return s.empty();
}

bool ipv6(std::string_view s) {
  // Groups before and after one optional "::"; a trailing IPv4 address counts as two groups.
  int groups = 0;
  bool gap = false;
  if (s.starts_with("::")) {
    gap = true;
    s.remove_prefix(2);
    if (s.empty()) return true;
  }
  while (true) {
    if (s.find_first_of(".:") != std::string_view::npos && s[s.find_first_of(".:")] == '.') {
      groups += 2;
      return ipv4(s) && (gap ? groups <= 7 : groups == 8);
    }
    size_t n = 0;
    while (n < s.size() && n < 5 && hex(s[n])) ++n;
    if (n == 0 || n > 4) return false;
    s.remove_prefix(n);
    ++groups;
    if (s.empty()) return gap ? groups <= 7 : groups == 8;
    if (!take(s, ':')) return false;
    if (take(s, ':')) {
      if (gap) return false;
      gap = true;
      if (s.empty()) return groups <= 7;
    }
  }
}

bool email(std::string_view s) {
  static constexpr std::string_view kAtom = "!#$%&'*+-/=?^_`{|}~";
  if (s.empty()) return false;
  if (take(s, '"')) {
    while (!s.empty() && s[0] != '"') {
      if (s[0] == '\\') s.remove_prefix(1);
      if (s.empty() || s[0] < 32 || s[0] > 126) return false;
      s.remove_prefix(1);
    }
    if (!take(s, '"')) return false;
  } else {
    bool atom = false;
    while (!s.empty() && s[0] != '@') {
      if (s[0] == '.') {
        if (!atom) return false;
        atom = false;
      } else {
        if (!alnum(s[0]) && !one_of(s[0], kAtom)) return false;
        atom = true;
      }
      s.remove_prefix(1);
    }
    if (!atom) return false;
  }
  if (!take(s, '@')) return false;
  if (!s.starts_with('[')) return hostname(s);
  if (!s.ends_with(']')) return false;
  s = s.substr(1, s.size() - 2);
  if (s.starts_with("IPv6:")) return ipv6(s.substr(5));
  return ipv4(s);
}

// Characters of the set `extra`, unreserved, sub-delims, and percent escapes; stops at the first other one.
bool take_uri_chars(std::string_view& s, std::string_view extra) {
  while (!s.empty()) {
    if (s[0] == '%') {
      if (s.size() < 3 || !hex(s[1]) || !hex(s[2])) return false;
      s.remove_prefix(3);
    } else if (alnum(s[0]) || one_of(s[0], "-._~!$&'()*+,;=") || one_of(s[0], extra)) {
      s.remove_prefix(1);
    } else {
      break;
    }
  }
  return true;
}

bool uri_authority(std::string_view a) {
  if (size_t at = a.find('@'); at != std::string_view::npos) {
    std::string_view user = a.substr(0, at);
    if (!take_uri_chars(user, ":") || !user.empty()) return false;
    a.remove_prefix(at + 1);
  }
  if (take(a, '[')) {
    size_t end = a.find(']');
    if (end == std::string_view::npos) return false;
    std::string_view host = a.substr(0, end);
    a.remove_prefix(end + 1);
    if (!host.empty() && one_of(host[0], "vV")) {
      size_t dot = host.find('.');
      if (dot == std::string_view::npos || dot < 2 || dot + 1 == host.size()) return false;
      if (!std::all_of(host.begin() + 1, host.begin() + static_cast<long>(dot), hex)) return false;
      for (char c : host.substr(dot + 1)) {
        if (!alnum(c) && !one_of(c, "-._~!$&'()*+,;=:")) return false;
      }
    } else if (!ipv6(host)) {
      return false;
    }
  } else if (!take_uri_chars(a, "")) {
    return false;
  }
  if (a.empty()) return true;
  return take(a, ':') && std::all_of(a.begin(), a.end(), digit);
}

bool uri(std::string_view s) {
  size_t colon = s.find(':');
  if (colon == std::string_view::npos || colon == 0 || !alpha(s[0])) return false;
  for (char c : s.substr(0, colon)) {
    if (!alnum(c) && !one_of(c, "+-.")) return false;
  }
  s.remove_prefix(colon + 1);
  if (s.starts_with("//")) {
    s.remove_prefix(2);
    size_t end = std::min(s.find_first_of("/?#"), s.size());
    if (!uri_authority(s.substr(0, end))) return false;
    s.remove_prefix(end);
  }
  if (!take_uri_chars(s, ":@/")) return false;
  if (take(s, '?') && !take_uri_chars(s, ":@/?")) return false;
  if (take(s, '#') && !take_uri_chars(s, ":@/?")) return false;
  return s.empty();
}

bool uuid(std::string_view s) {
  if (s.size() != 36) return false;
  for (size_t i = 0; i < 36; ++i) {
    bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? s[i] != '-' : !hex(s[i])) return false;
  }
  return true;
}

#define DI_DATE                                                                                         \
  "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|" \
  "02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define DI_TIME                                                                                                \
  "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[Zz]|[+\\-](?:[01][0-9]|2[0-3]):[0-5][0-9])|" \
  "23:59:60(?:\\.[0-9]+)?(?:[Zz]|[+\\-]00:00))"
#define DI_HOSTNAME \
  "[A-Za-z0-9](?:[A-Za-z0-9\\-]{0,61}[A-Za-z0-9])?(?:\\.[A-Za-z0-9](?:[A-Za-z0-9\\-]{0,61}[A-Za-z0-9])?)*"
#define DI_OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define DI_IPV4 DI_OCTET "(?:\\." DI_OCTET "){3}"
#define DI_H16 "[0-9A-Fa-f]{1,4}"
#define DI_LS32 "(?:" DI_H16 ":" DI_H16 "|" DI_IPV4 ")"
#define DI_IPV6                                                                                            \
  "(?:(?:" DI_H16 ":){6}" DI_LS32 "|::(?:" DI_H16 ":){5}" DI_LS32 "|(?:" DI_H16 ")?::(?:" DI_H16 ":){4}" DI_LS32 \
  "|(?:(?:" DI_H16 ":){0,1}" DI_H16 ")?::(?:" DI_H16 ":){3}" DI_LS32 "|(?:(?:" DI_H16 ":){0,2}" DI_H16     \
  ")?::(?:" DI_H16 ":){2}" DI_LS32 "|(?:(?:" DI_H16 ":){0,3}" DI_H16 ")?::" DI_H16 ":" DI_LS32             \
  "|(?:(?:" DI_H16 ":){0,4}" DI_H16 ")?::" DI_LS32 "|(?:(?:" DI_H16 ":){0,5}" DI_H16 ")?::" DI_H16         \
  "|(?:(?:" DI_H16 ":){0,6}" DI_H16 ")?::)"
#define DI_ATOM "[A-Za-z0-9!#$%&'*+\\-/=?\\^_`{|}~]+"
#define DI_UCHAR(extra) "(?:[A-Za-z0-9\\-._~!$&'()*+,;=" extra "]|%[0-9A-Fa-f]{2})*"

constexpr std::array<FormatRegex, 10> kRegexes{{
    {DI_DATE "[Tt]" DI_TIME, -1, false},
    {DI_DATE},
    {DI_TIME, -1, false},
    {"P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)?(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)"
     "?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))|"
     "[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"},
    // The domain's own bound of 253 characters is left to the automaton's user: none of the texts that models write
    // gets there.
    {"(?:" DI_ATOM "(?:\\." DI_ATOM ")*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@(?:" DI_HOSTNAME "|\\[(?:" DI_IPV4
     "|IPv6:" DI_IPV6 ")\\])",
     -1, false},
    {DI_HOSTNAME, 253},
    {DI_IPV4},
    {DI_IPV6},
    {"[A-Za-z][A-Za-z0-9+.\\-]*:(?://(?:" DI_UCHAR(
        ":") "@)?(?:\\[(?:" DI_IPV6
             "|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9\\-._~!$&'()*+,;=:]+)\\]|" DI_UCHAR("") ")(?::[0-9]*)?(?:/" DI_UCHAR(
                 ":@/") ")?|/?(?:"
                        "(?:[A-Za-z0-9\\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})" DI_UCHAR(":@/") ")?)(?:\\?" DI_UCHAR(
                            ":@/?") ")?(?:#" DI_UCHAR(":@/?") ")?"},
    {"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
}};

size_t index_of(std::string_view name) {
  return static_cast<size_t>(std::find(kNames.begin(), kNames.end(), name) - kNames.begin());
}

}  // namespace

bool is_known_format(std::string_view name) { return index_of(name) < kNames.size(); }

bool check_format(std::string_view name, std::string_view text) {
  switch (index_of(name)) {
    case 0: return date_time(text);
    case 1: return take_date(text) && text.empty();
    case 2: return time_of_day(text);
    case 3: return duration(text);
    case 4: return email(text);
    case 5: return hostname(text);
    case 6: return ipv4(text);
    case 7: return ipv6(text);
    case 8: return uri(text);
    default: return uuid(text);
  }
}

FormatRegex format_regex(std::string_view name) { return kRegexes[index_of(name)]; }

}  // namespace deepinfer::grammar
