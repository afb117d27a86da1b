package checkpoint

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/longshore/longshore/internal/core"
)

// filterImage is an image of CRIU with filters. after is the index of the previous one; -1 for none.
func filterImage(filters [][]byte, after []int) []byte {
	var entries []byte
	for i, f := range filters {
		e := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), f)
		if after[i] >= 0 {
			e = protowire.AppendVarint(protowire.AppendTag(e, 2, protowire.VarintType), uint64(after[i]))
		}
		e = protowire.AppendVarint(protowire.AppendTag(e, 3, protowire.VarintType), 0)
		entries = protowire.AppendBytes(protowire.AppendTag(entries, 1, protowire.BytesType), e)
	}
	b := binary.LittleEndian.AppendUint32(nil, 0x54564319)
	b = binary.LittleEndian.AppendUint32(b, 0x64413049)
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(entries))), entries...)
}

func TestTheFirstFiltersAreTheSpecs(t *testing.T) {
	program := []unix.SockFilter{{Code: 6, K: 0x7fff0000}}
	want, other := []byte{6, 0, 0, 0, 0, 0, 0xff, 0x7f}, []byte{6, 0, 0, 0, 0, 0, 0, 0}
	c := New(Options{Root: t.TempDir(), Filter: func(*specs.LinuxSeccomp) ([]unix.SockFilter, error) { return program, nil }})
	const id core.ID = "c"
	if err := os.MkdirAll(c.dir(id)+"/checkpoint", 0o700); err != nil {
		t.Fatal(err)
	}
	spec := &specs.Spec{Linux: &specs.Linux{Seccomp: &specs.LinuxSeccomp{}}}
	if err := c.examineFilters(id, spec); !errdefs.IsPermissionDenied(err) {
		t.Errorf("no image: %v", err)
	}
	good := filterImage([][]byte{want, other}, []int{-1, 0})
	for name, i := range map[string]struct {
		b  []byte
		is func(error) bool
	}{
		"the spec's":       {good, func(err error) bool { return err == nil }},
		"another":          {filterImage([][]byte{other, want}, []int{-1, 0}), errdefs.IsPermissionDenied},
		"another as well":  {filterImage([][]byte{want, other}, []int{-1, -1}), errdefs.IsPermissionDenied},
		"short":            {good[:len(good)-1], errdefs.IsInvalidArgument},
		"no protobuf":      {append(bytes.Clone(good[:8]), 1, 0, 0, 0, 0xff), errdefs.IsInvalidArgument},
		"without a length": {good[:8], errdefs.IsInvalidArgument},
	} {
		if err := os.WriteFile(c.dir(id)+"/checkpoint/seccomp.img", i.b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.examineFilters(id, spec); !i.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzFirstFilters(f *testing.F) {
	f.Add(filterImage([][]byte{{1, 2}, {3}}, []int{-1, 0}))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := firstFilters(b)
		size := 0
		for _, one := range list {
			size += len(one)
		}
		if err == nil && size > len(b) {
			t.Errorf("%d bytes of filters in %d", size, len(b))
		}
	})
}

func TestAThreadWithMoreRightsIsNamed(t *testing.T) {
	p := &specs.Process{NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN", "CAP_KILL"}}}
	good := map[string]string{"CapBnd": "21", "CapPrm": "21", "CapEff": "1", "CapInh": "0", "CapAmb": "0", "NoNewPrivs": "1", "Seccomp": "2"}
	if err := examineStatus(1, good, p, true); err != nil {
		t.Error(err)
	}
	for field, c := range map[string]struct{ value, words string }{
		"CapBnd": {"23", "CAP_DAC_OVERRIDE"}, "CapEff": {"200000", "CAP_SYS_ADMIN"}, "CapInh": {"2", "CAP_DAC_OVERRIDE"}, "CapAmb": {"8000000000000000", "0x8"},
		"NoNewPrivs": {"0", "no_new_privs"}, "Seccomp": {"0", "no seccomp filter"},
	} {
		bad := map[string]string{}
		for k, v := range good {
			bad[k] = v
		}
		bad[field] = c.value
		if err := examineStatus(1, bad, p, true); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestAProcessIsExamined: the test's process has the host's namespaces and limits.
func TestAProcessIsExamined(t *testing.T) {
	spec := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
	if err := examineNamespaces(os.Getpid(), spec); err != nil {
		t.Error(err)
	}
	spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "/proc/self/ns/net"}}
	if err := examineNamespaces(os.Getpid(), spec); err != nil {
		t.Error(err)
	}
	spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	if err := examineNamespaces(os.Getpid(), spec); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "the host's mount namespace") {
		t.Errorf("the host's: %v", err)
	}
	spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.IPCNamespace, Path: "/proc/self/ns/net"}}
	if err := examineNamespaces(os.Getpid(), spec); !errdefs.IsPermissionDenied(err) {
		t.Errorf("another: %v", err)
	}
	var is unix.Rlimit
	if err := unix.Prlimit(os.Getpid(), unix.RLIMIT_NOFILE, nil, &is); err != nil {
		t.Fatal(err)
	}
	for hard, fine := range map[uint64]bool{is.Max: true, is.Max - 1: false} {
		p := &specs.Process{Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: hard}}}
		if err := examineLimits(os.Getpid(), p); (err == nil) != fine {
			t.Errorf("a hard limit of %d of %d: %v", hard, is.Max, err)
		}
	}
}

// TestConnectionsAreThoseOfTheProcesses: a listening socket and one of another process have no connection.
func TestConnectionsAreThoseOfTheProcesses(t *testing.T) {
	sockets := map[string]bool{"111": true}
	line := func(local, state, inode string) string {
		return "   0: " + local + " 0100007F:1538 " + state + " 00000000:00000000 00:00000000 00000000     0        0 " + inode + " 1 0000000000000000 100 0 0 10 0"
	}
	address := word([]byte{10, 0, 2, 7})
	mapped := "0000000000000000" + word([]byte{0, 0, 0xff, 0xff}) + address
	var got []string
	for _, l := range []string{
		"  sl  local_address rem_address", line(address+":1F90", "01", "111"), line(mapped+":1F90", "08", "111"),
		line(address+":1F90", "0A", "111"), line(address+":1F90", "01", "222"), line(word([]byte{127, 0, 0, 1})+":1F90", "01", "111"), line("zz:1F90", "01", "111"),
	} {
		if a, ok := connection(l, sockets); ok {
			got = append(got, a)
		}
	}
	if !slices.Equal(got, []string{"10.0.2.7", "10.0.2.7"}) {
		t.Errorf("%q", got)
	}
}

// word is a word of an address as /proc has it.
func word(b []byte) string {
	s := strings.ToUpper(strconv.FormatUint(uint64(binary.NativeEndian.Uint32(b)), 16))
	return strings.Repeat("0", 8-len(s)) + s
}
