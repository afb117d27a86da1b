package control

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"

	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// maxUserFile bounds what is read of a container's passwd and group.
const maxUserFile = 4 << 20

// findUser resolves user[:group], by name or number, inside root; "" is root
// itself. It answers the home directory too.
func findUser(root *os.Root, asked string) (specs.User, string, error) {
	passwd, err := readInside(root, "etc/passwd")
	if err != nil {
		return specs.User{}, "", err
	}
	group, err := readInside(root, "etc/group")
	if err != nil {
		return specs.User{}, "", err
	}
	u, err := user.GetExecUser(asked, &user.ExecUser{Home: "/"}, bytes.NewReader(passwd), bytes.NewReader(group))
	if err != nil {
		return specs.User{}, "", invalid("user %q: %v", asked, err)
	}
	out := specs.User{UID: uint32(u.Uid), GID: uint32(u.Gid)} //nolint:gosec // checked below
	for _, id := range append([]int{u.Uid, u.Gid}, u.Sgids...) {
		// The last number means "unchanged" to the kernel.
		if id < 0 || int64(id) >= math.MaxUint32 {
			return specs.User{}, "", invalid("user %q: id %d is out of range", asked, id)
		}
	}
	for _, g := range u.Sgids {
		out.AdditionalGids = append(out.AdditionalGids, uint32(g)) //nolint:gosec // checked above
	}
	return out, u.Home, nil
}

// readInside reads a small file of a container, nil when there is none. It
// follows absolute links as the container would: from its own root.
func readInside(root *os.Root, name string) ([]byte, error) {
	for range 16 {
		if target, err := root.Readlink(name); err == nil && strings.HasPrefix(target, "/") {
			name = strings.Trim(target, "/")
			continue
		}
		f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, invalid("/%s: %v", name, err)
		}
		b, err := io.ReadAll(io.LimitReader(f, maxUserFile))
		return b, errors.Join(err, f.Close())
	}
	return nil, invalid("/%s: too many links", name)
}
