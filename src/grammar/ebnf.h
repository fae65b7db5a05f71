// GBNF grammars (the EBNF of llama.cpp, which xgrammar reads too) into the grammar form.
//
//   DI_ASSIGN_OR_RETURN(Grammar g, compile_ebnf("root ::= \"a\" [0-9]{2,4} (\",\" root)?"));
//
// Start rule `root`. `name ::= alternatives`, where a rule goes on until the next `name ::=`; `|`, `( )`, `* + ? {m}
// {m,} {m,n}`, `"..."`, `[...]`, `[^...]`, `.` (any character), `#` comments. Escapes: \n \r \t \\ \" \] \[ \- \^ \xHH
// \uHHHH \UHHHHHHHH; characters are code points. Literals that spell an added token (GrammarBuilder::set_added_tokens)
// stand for that token; classes never do. Refused: rules that are undefined, defined twice or can produce no finite
// text, no `root`, anything left over.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/grammar.h"

namespace deepinfer::grammar {

Result<Grammar> compile_ebnf(std::string_view text, const std::vector<AddedToken>& added = {},
                             const Limits& limits = {});

// The same as a part of a larger grammar. Rules get names of their own.
Result<Expr> add_ebnf(GrammarBuilder& builder, std::string_view text);

}  // namespace deepinfer::grammar
