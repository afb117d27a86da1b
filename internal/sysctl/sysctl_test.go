package sysctl_test

import (
	"path"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"

	"github.com/longshore/longshore/internal/sysctl"
)

func TestParse(t *testing.T) {
	for name, want := range map[string]sysctl.Key{
		"net.ipv4.ip_forward":             {specs.NetworkNamespace, "net", "ipv4/ip_forward"},
		"net/ipv4/ip_forward":             {specs.NetworkNamespace, "net", "ipv4/ip_forward"},
		"net.ipv4.conf.eth0/1.forwarding": {specs.NetworkNamespace, "net", "ipv4/conf/eth0.1/forwarding"},
		"net/ipv4/conf/eth0.1/forwarding": {specs.NetworkNamespace, "net", "ipv4/conf/eth0.1/forwarding"},
		"fs.mqueue.msg_max":               {specs.IPCNamespace, "fs/mqueue", "msg_max"},
		"fs/mqueue/msg_max":               {specs.IPCNamespace, "fs/mqueue", "msg_max"},
		"kernel.shmmax":                   {specs.IPCNamespace, "kernel", "shmmax"},
		"kernel.msg_next_id":              {specs.IPCNamespace, "kernel", "msg_next_id"},
		"kernel/domainname":               {specs.UTSNamespace, "kernel", "domainname"},
	} {
		got, err := sysctl.Parse(name)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		again, err := sysctl.Parse(got.Dotted())
		if err != nil || again != got {
			t.Errorf("%s, dotted %s: %+v, %v", name, got.Dotted(), again, err)
		}
	}
	for _, name := range []string{
		"", ".", "/", "..", "net", "net.", "net/", "kernel", "kernel.", "fs.mqueue", "fs.mqueue.", "vm.swappiness", "kernel.core_pattern", "fs.file-max",
		"kernel.shmmax.x", "kernel.shm", "kernel.shmmaxx", "kernel.msgmax/x", "networks.x", "fs.mqueues.x", "dev.cdrom.info",
		"net.//.kernel.core_pattern", "net.//.//.etc.passwd", "net/../kernel/core_pattern", "net/./ipv4/ip_forward", "net././ipv4.ip_forward",
		"net..ipv4", "net//ipv4", "net.ipv4..ip_forward", ".net.ipv4.ip_forward", "/net/ipv4/ip_forward", "net.ipv4.ip_forward.", "//.net.x", "net.ipv4.//",
		"fs.mqueue.//.file-max", "fs/mqueue/../file-max", "kernel.//.kernel.core_pattern", "fs.//.net.x", "net.\x00", "net.a\x00b", "net.ipv4/../x",
		"net." + strings.Repeat("a", 256), "net" + strings.Repeat(".a", 600), "Net.ipv4.ip_forward", " net.ipv4.ip_forward",
	} {
		if got, err := sysctl.Parse(name); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
}

func TestParseAll(t *testing.T) {
	got, err := sysctl.ParseAll(map[string]string{"net.b": "1", "kernel.sem": "2", "net/a": "3"})
	if err != nil || len(got) != 3 || got[0].Name != "kernel.sem" || got[1].Name != "net.b" || got[2].Value != "3" {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []map[string]string{{"net.a": "1", "net/a": "1"}, {"net.a": "1", "vm.swappiness": "1"}} {
		if got, err := sysctl.ParseAll(bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %+v, %v", bad, got, err)
		}
	}
}

// stays checks the file that is opened for a name: it must be below the namespace's own
// directory.
func stays(t interface {
	Errorf(format string, args ...any)
}, name string,
) {
	k, err := sysctl.Parse(name)
	if err != nil {
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", name, err)
		}
		return
	}
	below := map[specs.LinuxNamespaceType][]string{
		specs.NetworkNamespace: {"net/"}, specs.UTSNamespace: {"kernel/hostname", "kernel/domainname"},
		specs.IPCNamespace: {"fs/mqueue/", "kernel/msg", "kernel/sem", "kernel/shm", "kernel/auto_msgmni"},
	}[k.Kind]
	whole := path.Join("/proc/sys", k.String())
	if whole != "/proc/sys/"+k.String() {
		t.Errorf("%q: %q is not its own shortest form", name, k)
	}
	for _, prefix := range below {
		if strings.HasPrefix(whole, "/proc/sys/"+prefix) && !strings.ContainsRune(whole, 0) {
			return
		}
	}
	t.Errorf("%q is of the %s namespace, and opens %s", name, k.Kind, whole)
}

func TestNoNameLeadsOutOfItsNamespace(t *testing.T) {
	pieces := []string{"net", "kernel", "fs", "mqueue", "ipv4", "msgmax", "shmmax", "hostname", "core_pattern", "a", "..", ".", "/", "//", "\x00", "", " ", "é"}
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(
			rapid.String(),
			rapid.Map(rapid.SliceOf(rapid.SampledFrom(pieces)), func(p []string) string { return strings.Join(p, "") }),
			rapid.Map(rapid.SliceOf(rapid.SampledFrom(pieces)), func(p []string) string { return "net." + strings.Join(p, ".") }),
			rapid.Map(rapid.SliceOf(rapid.SampledFrom(pieces)), func(p []string) string { return "fs/mqueue/" + strings.Join(p, "/") }),
		).Draw(t, "name")
		stays(t, name)
		if k, err := sysctl.Parse(name); err == nil {
			found++
			if again, err := sysctl.Parse(k.String()); err != nil || again != k {
				t.Errorf("%q: %+v, %v", k, again, err)
			}
		}
	})
	if found == 0 && !testing.Short() { // a short run may meet none
		t.Error("no generated name is one of a parameter")
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"net.ipv4.ip_forward", "net.//.kernel.core_pattern", "fs/mqueue/msg_max", "kernel.sem", "net.ipv4.conf.eth0/1.forwarding"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) { stays(t, name) })
}
