package keeper

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/wire"
)

// files returns n open descriptors.
func files(t *testing.T, n int) descriptors {
	t.Helper()
	var all descriptors
	for range n {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fd)
	}
	return all
}

func isOpen(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil
}

// TestACopyWithoutItsDescriptorsLeavesTheOneBefore follows one item through a shortage of descriptors at
// the client, another request, and the end of the shortage.
func TestACopyWithoutItsDescriptorsLeavesTheOneBefore(t *testing.T) {
	k := copies{items: map[string]*copied{}, failed: map[string]bool{}}
	roles := []wire.Role{wire.RoleSink, wire.RoleSink + 1}
	item := func(blob string, roles, keep []wire.Role) *wire.Item {
		return &wire.Item{Key: "a", Roles: roles, Keep: keep, Blob: []byte(blob)}
	}
	check := func(what, blob string, n, failed int) {
		t.Helper()
		it := k.items["a"]
		if it == nil || string(it.Blob) != blob || len(it.fds) != n || len(it.Roles) != n || len(k.failed) != failed {
			t.Fatalf("%s: %+v, failed %v; want record %q with %d descriptors, %d failed", what, it, k.failed, blob, n, failed)
		}
		if i := slices.IndexFunc(it.fds, func(fd int) bool { return !isOpen(fd) }); i >= 0 {
			t.Fatalf("%s: descriptor %d of the copy is closed", what, it.fds[i])
		}
	}
	first := files(t, 1)
	k.take(item("1", roles[:1], nil), first)
	k.complete()
	check("at first", "1", 1, 0)
	k.take(item("2", roles[1:], roles[:1]), nil)
	check("without room", "1", 1, 1)
	k.take(item("3", nil, roles), nil)
	check("a change that keeps what never came", "1", 1, 1)
	k.again()
	k.take(item("3", roles, nil), nil)
	k.complete()
	check("asked again, without room", "1", 1, 1)
	k.again()
	k.take(item("3", roles, nil), files(t, 2))
	k.complete()
	check("asked again", "3", 2, 0)
	if isOpen(first[0]) {
		t.Error("a descriptor of the copy before is open")
	}
	k.take(item("4", roles[:1], nil), nil)
	k.again()
	k.complete()
	if len(k.items) != 0 || len(k.failed) != 0 {
		t.Errorf("of an item that is no more there is %v, failed %v", k.items, k.failed)
	}
}
