// Which addresses the service may connect to on a client's word.
//
//   if (!is_public_address(*address)) refuse();
//
// Only addresses of the public internet: none that IANA's special-purpose registries (RFC 6890 and its updates) keep
// for this host, private and shared networks, links, documentation, tests, relays or groups. IPv6 forms that carry an
// IPv4 address (mapped, translated, 6to4, Teredo) are refused whole: what they reach is another network's choice.
#pragma once

struct sockaddr;

namespace deepinfer::serve {

bool is_public_address(const sockaddr& address);

}  // namespace deepinfer::serve
