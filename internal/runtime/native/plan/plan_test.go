package plan_test

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// aligned copies a blob to memory aligned as a mapping is.
func aligned(blob []byte) []byte {
	words := make([]uint64, (len(blob)+7)/8+1)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(blob))
	copy(mem, blob)
	return mem
}

func sample() *plan.Builder {
	b := &plan.Builder{}
	b.Clone(unix.CLONE_NEWPID|unix.CLONE_NEWNS, "/sys/fs/cgroup/x")
	b.JoinPid("/proc/1/ns/pid")
	again(b)
	return b
}

// again adds the operations of the sample.
func again(b *plan.Builder) {
	s := b.NewSlot()
	b.Add("open root", unix.SYS_OPENAT, plan.V(-100), plan.P(b.String("/root fs")), plan.V(unix.O_PATH)).To(s)
	try := b.Len()
	b.Add("mask", unix.SYS_OPENAT, plan.S(s), plan.P(b.String("proc/kcore")), plan.V(unix.O_PATH)).Allow(uint16(unix.ENOENT)).Kind = plan.Try
	b.Add("close", unix.SYS_CLOSE, plan.S(s))
	b.Over(try)
	b.AddStore("remember", s, b.Words(0))
	b.Add("go", unix.SYS_READ, plan.S(plan.SlotPark), plan.P(b.Words(0)), plan.V(1)).Result(1)
	b.Add("exec", unix.SYS_EXECVE, plan.P(b.String("/bin/sh")), plan.P(b.Strings([]string{"sh", "-c", "x"})), plan.P(b.Strings(nil)))
}

func TestPlaceTurnsOffsetsIntoAddresses(t *testing.T) {
	mem := aligned(sample().Encode())
	p, err := plan.Place(mem)
	if err != nil {
		t.Fatal(err)
	}
	exec := p.Ops[len(p.Ops)-1]
	if got := cstr(mem, exec.A[0]); got != "/bin/sh" {
		t.Errorf("program %q", got)
	}
	argv := (*[4]uint64)(unsafe.Pointer(&mem[exec.A[1]-address(mem)]))
	for i, want := range []string{"sh", "-c", "x"} {
		if got := cstr(mem, argv[i]); got != want {
			t.Errorf("argv[%d] = %q, want %q", i, got, want)
		}
	}
	if argv[3] != 0 {
		t.Error("argv does not end with NULL")
	}
	if p.CgroupDir() != "/sys/fs/cgroup/x" || p.PidNS() != "/proc/1/ns/pid" || p.Name(1) != "mask" || p.Ops[1].Want != 1 {
		t.Errorf("%q %q %d", p.CgroupDir(), p.Name(1), p.Ops[1].Want)
	}
}

func address(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&mem[0]))) }

func cstr(mem []byte, addr uint64) string {
	rest := mem[addr-address(mem):]
	return string(rest[:bytes.IndexByte(rest, 0)])
}

func TestPrintNamesEveryOperation(t *testing.T) {
	blob := aligned(sample().Encode())
	before := bytes.Clone(blob)
	s, err := plan.Print(blob)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"into /sys/fs/cgroup/x", `0 open root: call 257(-100, "/root fs", 0x200000) -> slot8`, "else pass over 1 or errno 2", "must be 1", "store slot 8\n", `{"sh", "-c", "x", 0x0}`} {
		if unix.SYS_OPENAT == 257 && !strings.Contains(s, want) {
			t.Errorf("no %q in\n%s", want, s)
		}
	}
	if !bytes.Equal(before, blob) {
		t.Error("printing changed the plan")
	}
}

// TestWhatIsTheSameReadsTheSame: where data stands does not show.
func TestWhatIsTheSameReadsTheSame(t *testing.T) {
	lines := func(b *plan.Builder) []string {
		head, l, err := plan.Lines(aligned(b.Encode()), func(nr uint32) string { return map[uint32]string{unix.SYS_OPENAT: "openat"}[nr] })
		if err != nil {
			t.Fatal(err)
		}
		return append(head, l...)
	}
	one, two := sample(), &plan.Builder{}
	two.String("something else first")
	two.Words(7, 8)
	two.Clone(unix.CLONE_NEWPID|unix.CLONE_NEWNS, "/sys/fs/cgroup/x")
	two.JoinPid("/proc/1/ns/pid")
	again(two)
	if d := cmp.Diff(lines(one), lines(two)); d != "" {
		t.Error(d)
	}
	if l := lines(one)[1]; !strings.HasPrefix(l, "open root: openat(-100, ") {
		t.Error(l)
	}
}

// TestPointersAreNotPrintedAsText stores a list of strings at offsets of letters as bytes.
func TestPointersAreNotPrintedAsText(t *testing.T) {
	for _, size := range []int{0, 0x4100, 0x4560, 0x6161} {
		b := &plan.Builder{}
		b.Bytes(make([]byte, size))
		for i := range 300 {
			b.Add("exec", unix.SYS_EXECVE, plan.V(1), plan.P(b.Strings([]string{strconv.Itoa(i)})))
		}
		_, lines, err := plan.Lines(aligned(b.Encode()), func(uint32) string { return "execve" })
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range lines {
			if want := `exec: execve(0x1, {"` + strconv.Itoa(i) + `", 0x0})`; l != want {
				t.Fatalf("after %d bytes: %s, want %s", size, l, want)
			}
		}
	}
}

func TestEveryDamagedByteIsRefused(t *testing.T) {
	good := sample().Encode()
	for i := range good {
		bad := aligned(good)
		bad[i] ^= 0x41
		if err := plan.Check(bad); err == nil {
			t.Fatalf("byte %d changed and the plan was taken", i)
		}
	}
	for i := range good {
		if err := plan.Check(aligned(good[:i])); err == nil {
			t.Fatalf("cut to %d bytes and the plan was taken", i)
		}
	}
}

func TestAPlanOfAnotherVersionIsNamedSo(t *testing.T) {
	bad := aligned(sample().Encode())
	bad[7]++
	if err := plan.Check(bad); !errors.Is(err, plan.ErrMagic) {
		t.Errorf("got %v", err)
	}
}

// TestOldVersions: a plan that needs nothing new becomes one of earlier versions, and theirs are
// taken.
func TestOldVersions(t *testing.T) {
	const slots, users = (plan.NumSlots - 32) * 8, 8
	plain := aligned(sample().Encode())
	withUsers := aligned(mapped(plan.IDMap{{Size: 1}}, plan.IDMap{{Size: 7}, {Inside: 7, Outside: 9, Size: 7}}).Encode())
	for name, c := range map[string]struct {
		now  []byte
		to   func([]byte) ([]byte, error)
		from func([]byte) []byte
		less int
	}{
		"version 1":                      {plain, plan.ToVersion1, plan.FromVersion1, slots + users},
		"version 2":                      {plain, plan.ToVersion2, plan.FromVersion2, slots},
		"version 2 with user namespaces": {withUsers, plan.ToVersion2, plan.FromVersion2, slots},
	} {
		old, err := c.to(c.now)
		if err != nil {
			t.Fatal(err)
		}
		if len(old) != len(c.now)-c.less || plan.Check(aligned(old)) == nil {
			t.Errorf("%s: %d bytes of %d", name, len(old), len(c.now))
		}
		if d := cmp.Diff(c.now, aligned(c.from(old))); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		for i := range old {
			bad := bytes.Clone(old)
			bad[i] ^= 0x41
			if plan.Check(aligned(c.from(bad))) == nil {
				t.Fatalf("%s: byte %d changed and the plan was taken", name, i)
			}
		}
	}
	b := &plan.Builder{}
	b.AddFork("second", 0, 0, 0)
	if _, err := plan.ToVersion1(aligned(b.Encode())); !errors.Is(err, plan.ErrNotInVersion1) {
		t.Errorf("%v", err)
	}
	given := &plan.Builder{}
	given.Give(1)
	given.Add("exit", unix.SYS_EXIT_GROUP)
	slot := &plan.Builder{}
	slot.Add("close", unix.SYS_CLOSE, plan.S(plan.SlotGiven))
	for name, b := range map[string]*plan.Builder{"descriptors": given, "a slot of one": slot} {
		if _, err := plan.ToVersion2(aligned(b.Encode())); !errors.Is(err, plan.ErrNotInVersion2) {
			t.Errorf("%s: %v", name, err)
		}
	}
	given.Give(plan.MaxGiven + 1)
	if err := plan.Check(aligned(given.Encode())); !errors.Is(err, plan.ErrBounds) {
		t.Errorf("too many descriptors: %v", err)
	}
}

// FuzzFromOldVersions: no bytes make them fail, and a sum that fits leads no further
// than Check.
func FuzzFromOldVersions(f *testing.F) {
	for _, to := range []func([]byte) ([]byte, error){plan.ToVersion1, plan.ToVersion2} {
		old, err := to(aligned(sample().Encode()))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(old)
	}
	f.Fuzz(func(t *testing.T, blob []byte) {
		plan.FixOld(blob)
		if mem := aligned(plan.FromVersion1(plan.FromVersion2(blob))); plan.Check(mem) == nil {
			if _, err := plan.Place(mem); err != nil {
				t.Error(err)
			}
		}
	})
}

// FuzzCheck: a blob that passes Check can be placed and read to its last operation without leaving
// it, even when its sum was made to fit.
func FuzzCheck(f *testing.F) {
	f.Add(sample().Encode())
	f.Add((&plan.Builder{}).Encode())
	f.Add(mapped(plan.IDMap{{Size: 1}}, plan.IDMap{{Size: 7}, {Inside: 7, Outside: 9, Size: 7}}).Encode())
	f.Fuzz(func(t *testing.T, blob []byte) {
		mem := aligned(blob)
		plan.Fix(mem)
		if plan.Check(mem) != nil {
			return
		}
		if _, err := plan.Print(mem); err != nil {
			t.Fatal(err)
		}
		p, err := plan.Place(mem)
		if err != nil {
			t.Fatal(err)
		}
		lo := uint64(uintptr(unsafe.Pointer(&mem[0])))
		for i, o := range p.Ops {
			_ = p.Name(i)
			for j, a := range o.A {
				if o.Ptrs&(1<<j) != 0 && (a < lo || a >= lo+uint64(len(mem))) {
					t.Fatalf("op %d argument %d points outside", i, j)
				}
			}
		}
		_, _ = p.CgroupDir(), p.PidNS()
		for _, u := range p.Users() {
			if err := errors.Join(u.UIDs.Check(), u.GIDs.Check()); err != nil || u.Slot < plan.SlotFree || u.Slot >= plan.NumSlots {
				t.Fatalf("%+v, %v", u, err)
			}
		}
	})
}
