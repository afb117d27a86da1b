package rootfs

import (
	"context"
	"os"
	"slices"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// maxNamespaces is how many user namespaces stay open for the next mounts. The engine gives the lowest free ranges to
// sandboxes, so a few mappings come again and again.
const maxNamespaces = 64

// namespaces makes user namespaces for id-mapped mounts, and keeps the last ones: only their mappings matter, and making one
// takes a request to the keeper and a process.
type namespaces struct {
	make func(ctx context.Context, uids, gids []specs.LinuxIDMapping, kinds ...specs.LinuxNamespaceType) ([]*os.File, error)

	mu   sync.Mutex // guards kept
	kept []namespace
}

// namespace is a user namespace with its mappings.
type namespace struct {
	uids, gids []core.IDRange
	file       *os.File
}

// open returns a user namespace with the mappings. The caller closes it.
func (n *namespaces) open(ctx context.Context, uids, gids []core.IDRange) (*os.File, error) {
	if f, err := n.find(uids, gids); f != nil || err != nil {
		return f, err
	}
	made, err := n.make(ctx, mappings(uids), mappings(gids), specs.UserNamespace)
	if err != nil {
		return nil, err
	}
	f, err := duplicate(made[0])
	if err != nil {
		_ = made[0].Close()
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept = append(n.kept, namespace{slices.Clone(uids), slices.Clone(gids), made[0]})
	if len(n.kept) > maxNamespaces {
		_ = n.kept[0].file.Close()
		n.kept = slices.Delete(n.kept, 0, 1)
	}
	return f, nil
}

// find returns a namespace that is open already, or nil, and makes it the last to be closed.
func (n *namespaces) find(uids, gids []core.IDRange) (*os.File, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.kept, func(k namespace) bool { return slices.Equal(k.uids, uids) && slices.Equal(k.gids, gids) })
	if i < 0 {
		return nil, nil //nolint:nilnil // none is the other answer
	}
	k := n.kept[i]
	n.kept = append(slices.Delete(n.kept, i, i+1), k)
	return duplicate(k.file)
}

// duplicate returns another descriptor of a namespace, because the next calls may close the first.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "user namespace"), nil
}
