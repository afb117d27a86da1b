package network_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// metadata are the addresses that sandboxes without a list do not reach.
var metadata = []string{"169.254.169.254:80", "[fd00:ec2::254]:80"}

func TestMetadataIsClosed(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewWorld(t, "169.254.169.254", "fd00:ec2::254", "169.254.169.253")
		r := newRig(t, func(c *netconf.Config) { c.IPv6 = true })
		r.start()
		all := func(b box, want bool) {
			t.Helper()
			for _, at := range metadata {
				b.reaches(t, "tcp", at, want)
				b.reaches(t, "udp", at, want)
			}
			b.reaches(t, "tcp", "169.254.169.253:80", true)
		}
		all(r.setup(1), false)
		with := func(n int, open bool, list ...string) box {
			ns := networktest.NewNamespace(t)
			req := r.request(ns, n)
			req.Config.Metadata, req.Config.Egress = open, list
			return r.do(ns, req)
		}
		all(with(2, true), true)
		all(with(3, false, "169.254.169.252/30", "fd00:ec2::254"), true)

		// A list decides from its first to its last moment.
		b := with(4, false)
		for _, c := range []struct {
			list []string
			want bool
		}{{[]string{"169.254.169.254", "fd00:ec2::254", "169.254.169.253"}, true}, {[]string{"169.254.169.253"}, false}, {nil, false}} {
			b.req.Config.Egress = c.list
			st, err := r.net.Restrict(t.Context(), b.req)
			if err != nil {
				t.Fatal(err)
			}
			b.req.Last = st
			all(b, c.want)
		}
		r.check(b)
	})
}

func TestMetadataIsClosedToCNIsPods(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(debianPlugins, "portmap")); err != nil {
			t.Skipf("no CNI plugins here: %v", err)
		}
		networktest.NewWorld(t, "169.254.169.254", "93.184.215.1")
		r, conf := cniRig(t, debianPlugins)
		write(t, conf, "10-lan.conflist", realList(t.TempDir()))
		closed := r.setup(1)
		closed.reaches(t, "tcp", "93.184.215.1:80", true)
		closed.reaches(t, "tcp", "169.254.169.254:80", false)
		ns := networktest.NewNamespace(t)
		req := r.request(ns, 2)
		req.Config.Metadata = true
		open := r.do(ns, req)
		open.reaches(t, "tcp", "169.254.169.254:80", true)
		r.down(closed)
		r.down(open)
	})
}
