package keeper

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/keeper/wire"
)

// Namespaces makes a user namespace with the given mappings and the network, IPC and
// UTS namespaces among kinds, which the new user namespace owns. It returns a
// namespace file for each of kinds, in their order; the file for "user" is that of the
// new user namespace. The caller closes the files. No program is executed for it.
func (c *Client) Namespaces(ctx context.Context, uids, gids []specs.LinuxIDMapping, kinds ...specs.LinuxNamespaceType) ([]*os.File, error) {
	m := &wire.Namespaces{UIDs: wireRanges(uids), GIDs: wireRanges(gids)}
	for _, k := range kinds {
		switch k {
		case specs.NetworkNamespace:
			m.Kinds = append(m.Kinds, "net")
		case specs.UserNamespace, specs.IPCNamespace, specs.UTSNamespace:
			m.Kinds = append(m.Kinds, string(k))
		default:
			return nil, fmt.Errorf("make namespaces: kind %q: %w", k, errdefs.ErrInvalidArgument)
		}
	}
	p, err := c.current(ctx)
	if err != nil {
		return nil, err
	}
	fds, err := p.call(ctx, wire.KindNamespaces, m, nil)
	if err != nil {
		return nil, err
	}
	if len(fds) != len(kinds) {
		fds.close()
		return nil, fmt.Errorf("make namespaces: %d of %d came: %w", len(fds), len(kinds), errdefs.ErrDataLoss)
	}
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), m.Kinds[i])
	}
	return files, nil
}

func wireRanges(maps []specs.LinuxIDMapping) (r []wire.IDRange) {
	for _, m := range maps {
		r = append(r, wire.IDRange{Inside: m.ContainerID, Outside: m.HostID, Size: m.Size})
	}
	return r
}
