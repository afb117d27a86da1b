package settings

import (
	"errors"
	"io/fs"
)

// Ingress has the calling thread's namespace forward, and answer for no address of another
// interface.
func Ingress(is6 bool) error {
	set := [][2]string{
		{"net/ipv4/ip_forward", "1"},
		{"net/ipv4/conf/all/arp_ignore", "1"},
		{"net/ipv4/conf/all/send_redirects", "0"},
		{"net/ipv4/conf/default/send_redirects", "0"},
		{"net/ipv4/conf/all/accept_redirects", "0"},
		// A client may have an address as the overlay has.
		{"net/ipv4/conf/all/rp_filter", "0"},
		{"net/ipv4/conf/default/rp_filter", "0"},
	}
	off := "1"
	if is6 {
		off = "0"
	}
	for _, which := range []string{"all", "default"} {
		set = append(set, [2]string{"net/ipv6/conf/" + which + "/disable_ipv6", off}, [2]string{"net/ipv6/conf/" + which + "/accept_ra", "0"})
	}
	if is6 {
		set = append(set, [2]string{"net/ipv6/conf/all/forwarding", "1"},
			// For forwarded packets the kernel asks for neighbours from a link-local address, which must be ready
			// at once.
			[2]string{"net/ipv6/conf/all/accept_dad", "0"}, [2]string{"net/ipv6/conf/default/accept_dad", "0"})
	}
	own := []string{}
	for _, kv := range set {
		own = append(own, kv[0])
	}
	if err := Fresh(Forward{V4: true, V6: is6}, own...); err != nil {
		return err
	}
	for _, kv := range set {
		if _, err := Set(kv[0], kv[1]); err != nil && (is6 || !errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}
