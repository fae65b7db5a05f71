// Grammars in the syntax of Lark, as custom tools give them (spec/protocol.md 9.8), read into the grammar form.
//
//   DI_ASSIGN_OR_RETURN(Expr input, add_lark(builder, "start: NAME \"=\" /[0-9]+/\nNAME: /[a-z]+/\n%ignore \" \""));
//
// Supported: rules (with ?, !, aliases and priorities, which change no text), terminals, strings ("..." and "..."i),
// regular expressions without flags (regex.h), ranges "a".."z", ( ), [ ], |, ?, *, +, ~n and ~n..m, comments, %ignore,
// and %import of the common terminals. A text fits if there is some way to cut it into terminals; Lark's lexer, which
// takes the longest terminal first, may find none in rare cases. Ignored terminals may stand before every terminal and
// at the end. Refused by name: templates, flags, %declare, %extend, %override, other imports, terminals that need
// themselves.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/grammar.h"

namespace deepinfer::grammar {

Result<Expr> add_lark(GrammarBuilder& builder, std::string_view text);

}  // namespace deepinfer::grammar
