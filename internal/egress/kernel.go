package egress

import "strconv"

// The kernel's objects in the network namespace of a sandbox with a list. The agent makes the rules (network/nft), and the
// name server adds addresses (network/names).
const (
	// Table is the name of the table, in the inet family.
	Table = "longshore-egress"
	// Group is the group of nflog for the rules' reports of connections.
	Group = 4711
	// Mark is the mark of the packets of the process that verifies connections. Programs without CAP_NET_ADMIN and CAP_NET_RAW
	// in the namespace cannot set marks.
	Mark = 0x6c65_7665
	// Opened and Refused are the prefixes of the reports: of the first packet of a connection that passed, and of a packet
	// that was refused.
	Opened  = "open"
	Refused = "refused"
)

// NamesSet returns the name of the set with the addresses of names that have a service. Its elements have a timeout.
func NamesSet(service int, is4 bool) string {
	if is4 {
		return "names4-" + strconv.Itoa(service)
	}
	return "names6-" + strconv.Itoa(service)
}
