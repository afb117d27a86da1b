package network_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

const debianPlugins = "/usr/lib/cni"

// realList is a network of the plugins that every distribution has. They store state only in dir.
// CHECK of older portmap and bandwidth plugins fails, or panics, when they made nothing: hence
// disableCheck.
func realList(dir string) string {
	return `{"cniVersion": "1.0.0", "name": "lan", "disableCheck": true, "plugins": [
		{"type": "bridge", "bridge": "cni7", "isGateway": true, "ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": "` + dir + `", "ranges": [[{"subnet": "10.77.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
		{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
		{"type": "bandwidth", "capabilities": {"bandwidth": true}}]}`
}

// plainList is a network that can be checked.
func plainList(dir string) string {
	return `{"cniVersion": "1.0.0", "name": "plain", "plugins": [{"type": "bridge", "bridge": "cni8", "isGateway": true,
		 "ipam": {"type": "host-local", "dataDir": "` + dir + `", "ranges": [[{"subnet": "10.78.0.0/24"}]]}}]}`
}

func cniRig(t *testing.T, bins ...string) (*rig, string) {
	t.Helper()
	conf := t.TempDir()
	return newRig(t, func(c *netconf.Config) {
		c.Mode = netconf.ModeCNI
		c.CNI = netconf.CNIConfig{ConfDir: conf, BinDirs: bins}
	}), conf
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestCNIReal(t *testing.T) {
	if roottest.Hardened() {
		t.Skip("these plugins do not open the host's firewall: its administrator adds the plugin firewall")
	}
	roottest.Run(t, func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(debianPlugins, "portmap")); err != nil {
			t.Skipf("no CNI plugins here: %v", err)
		}
		out := newOutside(t)
		r, conf := cniRig(t, debianPlugins)
		state := t.TempDir()
		info, err := r.net.Info(t.Context())
		if err != nil || info.Ready || !strings.Contains(info.Reason, "put a .conflist there") {
			t.Errorf("without a configuration: %+v, %v", info, err)
		}
		if _, err := r.net.Setup(t.Context(), r.request(networktest.NewNamespace(t), 1)); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("setup without a configuration: %v", err)
		}
		write(t, conf, "10-lan.conflist", realList(state))
		if info, err := r.net.Info(t.Context()); err != nil || !info.Ready || info.Mode != "cni" {
			t.Errorf("with one: %+v, %v", info, err)
		}
		req := r.request(networktest.NewNamespace(t), 1, port("tcp", 8080, 80))
		req.Config.IngressRate = 1 << 20
		ns := &networktest.Namespace{Path: req.Namespace}
		one := r.do(ns, req)
		two := r.setup(2)
		write(t, conf, "20-plain.conflist", plainList(state))
		req3 := r.request(networktest.NewNamespace(t), 3)
		req3.Config.Name = "plain"
		three := r.do(nil, req3)
		ns.Serve(t, "tcp", 80)
		t.Cleanup(ns.Close)
		if len(one.req.Last.Interfaces) == 0 || one.req.Last.Interfaces[0].Interface != "eth0" || len(one.req.Last.Interfaces[0].Addrs) != 1 {
			t.Errorf("interfaces: %+v", one.req.Last.Interfaces)
		}
		var raw map[string]any
		if err := json.Unmarshal(one.req.Last.Raw, &raw); err != nil || raw["ips"] == nil {
			t.Errorf("raw result %s: %v", one.req.Last.Raw, err)
		}
		wantAnswer(t, two.ns, "tcp", at(one.addr(true), 80), two.addr(true).String())
		wantAnswer(t, nil, "tcp", at(out.host4, 8080), out.host4.String())
		wantAnswer(t, ns, "tcp", "127.0.0.1:80", "127.0.0.1")
		if q := networktest.Run(t, "tc qdisc"); !strings.Contains(q, "tbf") {
			t.Errorf("no bandwidth limit: %s", q)
		}
		r.check(one)
		// The configuration is removed; the next process still runs DEL for the sandboxes.
		if err := os.Remove(filepath.Join(conf, "10-lan.conflist")); err != nil {
			t.Fatal(err)
		}
		r.start()
		if ids, err := r.net.Sandboxes(t.Context()); err != nil || len(ids) != 3 {
			t.Errorf("sandboxes: %v, %v", ids, err)
		}
		r.check(one)
		r.check(three)
		networktest.Run(t, "nsenter --net="+req3.Namespace+" ip addr flush dev eth0")
		if err := r.net.Check(t.Context(), three.req); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("check without an address: %v", err)
		}
		r.down(one)
		two.ns.Close()
		if err := r.net.Recover(t.Context(), nil); err != nil {
			t.Errorf("recover: %v", err)
		}
		if ids, err := r.net.Sandboxes(t.Context()); err != nil || len(ids) != 0 {
			t.Errorf("left: %v, %v", ids, err)
		}
		if left, _ := filepath.Glob(filepath.Join(state, "lan", "10.*")); len(left) != 0 {
			t.Errorf("addresses left: %v", left)
		}
		if left, _ := filepath.Glob(filepath.Join(r.dir, "cni", "results", "*")); len(left) != 0 {
			t.Errorf("results left: %v", left)
		}
	})
}

// TestCNIBesideOverlays: plugins make the way out of a task, and we its overlays.
func TestCNIBesideOverlays(t *testing.T) {
	if roottest.Hardened() {
		t.Skip("these plugins do not open the host's firewall: its administrator adds the plugin firewall")
	}
	roottest.Run(t, func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(debianPlugins, "portmap")); err != nil {
			t.Skipf("no CNI plugins here: %v", err)
		}
		out := newOutside(t)
		r, conf := cniRig(t, debianPlugins)
		write(t, conf, "10-lan.conflist", realList(t.TempDir()))
		r.open(anOverlay(1), anOverlay(2))
		out.ns.Serve(t, "tcp", 80)
		one, two := r.task(1, on(1, 7)), r.task(2, on(1, 8))
		one.ns.Serve(t, "tcp", 80)
		works := func() {
			t.Helper()
			r.check(one)
			r.check(two)
			one.wantWay(t, "eth1")
			wantAnswer(t, two.ns, "tcp", "10.99.1.7:80", "10.99.1.8")
			wantAnswer(t, one.ns, "tcp", at(out.addr4, 80), out.host4.String())
		}
		works()
		if st := one.req.Last; st.Mode != "cni" || st.Interfaces[0].Network != "overlay:net1" || st.Addrs[0] != on(1, 7).Addrs[0].Addr() || !st.Resolver.IsValid() {
			t.Errorf("status: %+v", st)
		}
		r.wantInterfaces(one, "eth0", "eth1")
		lost := r.task(3, on(1, 9))
		r.start()
		r.recover(one, two)
		works()
		if text := lost.ip(t, "-o", "link"); strings.Contains(text, "eth0") {
			t.Errorf("interfaces of a sandbox without a record: %s", text)
		}
		r.attach(&two, on(2, 8))
		r.detach(&two, "overlay:net1")
		r.wantSandboxes(one, two)
		r.down(one)
		r.down(two)
		r.wantSandboxes()
	})
}

func TestCNIKeepsTheContract(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(debianPlugins, "portmap")); err != nil {
			t.Skipf("no CNI plugins here: %v", err)
		}
		networktest.Contract(t, func(t *testing.T) networktest.Subject {
			r, conf := cniRig(t, debianPlugins)
			write(t, conf, "10-plain.conflist", plainList(t.TempDir()))
			return networktest.Subject{Network: r.net, Namespace: func(t *testing.T) string { return networktest.NewNamespace(t).Path }}
		})
	})
}

// scripted is a plugin that records each call and fails where the test says.
const scripted = `#!/bin/sh
in=$(cat)
echo "$CNI_COMMAND $CNI_IFNAME netns=${CNI_NETNS:+yes} $CNI_ARGS" >> DIR/calls
echo "$in" > "DIR/in-$CNI_COMMAND"
if [ -e "DIR/fail-$CNI_COMMAND" ]; then
	cat "DIR/fail-$CNI_COMMAND"
	exit 1
fi
case $CNI_COMMAND in
ADD) echo '{"cniVersion": "1.1.0", "interfaces": [{"name": "'$CNI_IFNAME'", "sandbox": "'$CNI_NETNS'", "mac": "0a:58:0a:4d:00:02"}],
	"ips": [{"address": "10.77.0.2/24", "gateway": "10.77.0.1", "interface": 0}], "dns": {"nameservers": ["10.77.0.53"], "domain": "lan"}}' ;;
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}' ;;
esac
`

func TestCNIScripted(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		r, conf := cniRig(t, dir)
		list := func(version, name string) string {
			return `{"cniVersion": "` + version + `", "name": "` + name + `", "plugins": [{"type": "scripted",
			"capabilities": {"portMappings": true, "dns": true, "bandwidth": true, "ipRanges": true}}]}`
		}
		calls := func() []string {
			data, _ := os.ReadFile(filepath.Join(dir, "calls"))
			_ = os.Remove(filepath.Join(dir, "calls"))
			return slices.Collect(strings.Lines(string(data)))
		}
		info := func(says string) {
			t.Helper()
			i, err := r.net.Info(t.Context())
			if err != nil || i.Ready != (says == "") || !strings.Contains(i.Reason, says) {
				t.Errorf("info %+v, %v; want %q", i, err, says)
			}
		}
		write(t, conf, "05-broken.conflist", `{"name": "broken", "plugins": [`)
		info("05-broken.conflist")
		write(t, conf, "10-one.conflist", list("1.1.0", "one"))
		info("plugin scripted of network one is not in " + dir)
		write(t, dir, "scripted", strings.ReplaceAll(scripted, "DIR", dir))
		info("")
		write(t, dir, "fail-STATUS", `{"cniVersion": "1.1.0", "code": 50, "msg": "no daemon"}`)
		info("no daemon")
		_ = os.Remove(filepath.Join(dir, "fail-STATUS"))
		write(t, conf, "20-two.conflist", list("1.0.0", "two"))
		calls()

		req := r.request(networktest.NewNamespace(t), 1, core.Port{Proto: "udp", HostIP: netip.MustParseAddr("192.0.2.9"), Host: 53, Container: 5353})
		req.Config.Args = map[string]string{"K8S_POD_NAME": "web", "A": "b"}
		req.Config.DNS.Servers = []string{"10.1.1.1"}
		req.Config.EgressRate = 1_000_000
		if err := r.net.SetRanges(t.Context(), []string{"10.5.0.0/24"}); err != nil {
			t.Fatal(err)
		}
		// The first ADD fails: DEL follows, and nothing is left.
		write(t, dir, "fail-ADD", `{"cniVersion": "1.1.0", "code": 11, "msg": "not yet"}`)
		_, err := r.net.Setup(t.Context(), req)
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "not yet") {
			t.Errorf("failing ADD: %v", err)
		}
		want := []string{"ADD eth0 netns=yes IgnoreUnknown=1;A=b;K8S_POD_NAME=web\n", "DEL eth0 netns=yes IgnoreUnknown=1;A=b;K8S_POD_NAME=web\n"}
		if got := calls(); !slices.Equal(got, want) {
			t.Errorf("calls %q, want %q", got, want)
		}
		if ids, err := r.net.Sandboxes(t.Context()); err != nil || len(ids) != 0 {
			t.Errorf("left: %v, %v", ids, err)
		}
		_ = os.Remove(filepath.Join(dir, "fail-ADD"))

		req.Config.Attach = []core.Attachment{{Interface: "eth0"}, {Network: "two", Interface: "net1"}}
		st, err := r.net.Setup(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		req.Last = st
		var in struct {
			RuntimeConfig struct {
				PortMappings []map[string]any
				DNS          map[string]any
				Bandwidth    map[string]any
				IPRanges     [][]map[string]string
			}
		}
		data, err := os.ReadFile(filepath.Join(dir, "in-ADD"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &in); err != nil {
			t.Fatal(err)
		}
		if rc := in.RuntimeConfig; len(rc.PortMappings) != 0 || rc.IPRanges[0][0]["subnet"] != "10.5.0.0/24" {
			t.Errorf("second interface got %s", data)
		}
		if st.Addrs[0].String() != "10.77.0.2" || len(st.Interfaces) != 2 || st.Interfaces[1].Interface != "net1" || !slices.Equal(st.DNS.Searches, []string{"lan", "lan"}) {
			t.Errorf("status %+v", st)
		}
		calls()
		// DEL fails: the sandbox is still listed, and torn down later.
		write(t, dir, "fail-DEL", `{"cniVersion": "1.1.0", "code": 7, "msg": "broken"}`)
		if err := r.net.Teardown(t.Context(), req); err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("failing DEL: %v", err)
		}
		if ids, err := r.net.Sandboxes(t.Context()); err != nil || len(ids) != 1 {
			t.Errorf("known: %v, %v", ids, err)
		}
		_ = os.Remove(filepath.Join(dir, "fail-DEL"))
		calls()
		gone := core.NetworkRequest{Sandbox: req.Sandbox}
		for range 2 {
			if err := r.net.Teardown(t.Context(), gone); err != nil {
				t.Error(err)
			}
		}
		args := " netns= IgnoreUnknown=1;A=b;K8S_POD_NAME=web\n"
		if got := calls(); !slices.Equal(got, []string{"DEL net1" + args, "DEL eth0" + args}) {
			t.Errorf("calls %q", got)
		}
	})
}

// lingering is a plugin; its ADD leaves a process that holds its output, and its DEL never ends
// while there is a file.
const lingering = `#!/bin/sh
cat > /dev/null
case $CNI_COMMAND in
ADD)
	sleep 600 &
	echo $! > DIR/left
	echo '{"cniVersion": "1.0.0", "interfaces": [], "ips": []}' ;;
DEL)
	if [ -e DIR/hang ]; then
		echo $$ > DIR/hanging
		sleep 600
	fi ;;
esac
`

func TestAPluginThatDoesNotEndHoldsNobodyUp(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		r, conf := cniRig(t, dir)
		write(t, dir, "lingering", strings.ReplaceAll(lingering, "DIR", dir))
		write(t, conf, "10-one.conflist", `{"cniVersion": "1.0.0", "name": "one", "plugins": [{"type": "lingering"}]}`)
		req := r.request(networktest.NewNamespace(t), 1)
		st, err := r.net.Setup(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadFile(filepath.Join(dir, "left")); err != nil || len(left) == 0 {
			t.Fatalf("the plugin has left nothing, so this test sees no fault: %v", err)
		}
		req.Last = st
		write(t, dir, "hang", "")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- r.net.Teardown(ctx, req) }()
		roottest.Eventually(t, "DEL", func() bool { _, err := os.Stat(filepath.Join(dir, "hanging")); return err == nil })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("DEL that was given up: %v", err)
		}
		if ids, err := r.net.Sandboxes(t.Context()); err != nil || len(ids) != 1 {
			t.Errorf("known: %v, %v", ids, err)
		}
		_ = os.Remove(filepath.Join(dir, "hang"))
		if err := r.net.Teardown(t.Context(), req); err != nil {
			t.Error(err)
		}
	})
}
