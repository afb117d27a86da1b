// Package etc puts a sandbox's resolv.conf, hosts and hostname into its containers.
//
// Programs expect to be able to write these files, but a container must not write to the state file
// system, which it could fill. So a container with a layer of its own gets its own files in that
// layer. All others share read-only files on a small file system of their sandbox.
//
// It does not know the engine. Start at Write.
package etc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// The names of the files in a sandbox's directory and in a container's /etc.
const (
	Resolv   = "resolv.conf"
	Hosts    = "hosts"
	Hostname = "hostname"
)

// dir is the directory of the files in containers, and the name of the small file system in a
// sandbox's directory.
const dir = "etc"

// owner is the owner of a file in a layer.
type owner struct{ uid, gid int }

// Save writes files, by their names, to a sandbox's directory. Empty ones are left out.
func Save(dir string, files map[string][]byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	for name, content := range files {
		if len(content) == 0 {
			continue
		}
		// atomicfile is not needed: a sandbox with an incomplete file is not ready, and recovery
		// removes it.
		if err := root.WriteFile(name, content, 0o644); err != nil {
			return errors.Join(err, root.Close())
		}
	}
	return root.Close()
}

// Files returns those of Resolv, Hosts and Hostname that exist in a sandbox's directory.
func Files(dir string) []string {
	return slices.DeleteFunc([]string{Resolv, Hosts, Hostname}, func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err != nil || dir == ""
	})
}

// Without warns of names in a sandbox's hosts that have no address there: those of the node, where
// no network of the sandbox leads to it.
func Without(sb *core.Sandbox) []string {
	names := sb.Config.Network.Hosts[core.HostGateway]
	if len(names) == 0 || len(sb.Network.Gateways) > 0 {
		return nil
	}
	return []string{strings.Join(names, ", ") + " has no address: no network of the container leads to the node"}
}

// Write creates the files of names, copied from a sandbox's directory, in the root filesystem of a
// container that has a layer of its own. They belong to the container's root user. It returns the
// names that it left out because the image has a link or a directory in their place.
func Write(root *os.Root, sb *core.Sandbox, names []string) (left []string, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	uid, gid := sb.Config.HostIDs(0, 0)
	to := owner{int(uid), int(gid)}
	in, err := open(root, to)
	if err != nil {
		return names, nil // a link out of the root, or not a directory: the runtime resolves it inside the container
	}
	defer func() { _ = in.Close() }()
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(sb.Dir, name))
		if err != nil {
			return nil, err
		}
		// The existing file is the image's, and may be a link.
		if err := in.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			left = append(left, name)
			continue
		}
		if err := write(in, name, content, to); err != nil {
			return nil, fmt.Errorf("write /etc/%s: %w", name, err)
		}
	}
	return left, nil
}

// open opens /etc, and creates it when it is missing.
func open(root *os.Root, to owner) (*os.Root, error) {
	err := root.Mkdir(dir, 0o755)
	if err == nil {
		err = errors.Join(root.Chmod(dir, 0o755), root.Lchown(dir, to.uid, to.gid))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return root.OpenRoot(dir)
}

func write(in *os.Root, name string, content []byte, to owner) error {
	f, err := in.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Chmod(0o644), f.Chown(to.uid, to.gid), f.Close())
}

// Container is where a container that has run before has the files.
type Container struct {
	Mounts []specs.Mount
	Root   string // its root filesystem
	Layer  bool   // the root filesystem has a layer of its own
}

// Renew replaces the files of a container by those that its sandbox has now.
func Renew(ctx context.Context, roots core.Roots, sb *core.Sandbox, c Container) error {
	var own []string
	shared := false
	for _, name := range Files(sb.Dir) {
		source, mounted := "", false
		for _, m := range c.Mounts {
			if m.Destination == "/etc/"+name {
				source, mounted = m.Source, true
			}
		}
		switch {
		case strings.HasPrefix(source, sb.Dir+"/"):
			shared = true
		case !mounted && c.Layer && !Covered(c.Mounts):
			own = append(own, name)
		}
	}
	if shared {
		if _, err := Share(ctx, roots, sb, Files(sb.Dir)); err != nil {
			return err
		}
	}
	if len(own) == 0 {
		return nil
	}
	root, err := os.OpenRoot(c.Root)
	if err != nil {
		return err
	}
	_, err = Write(root, sb, own)
	return errors.Join(err, root.Close())
}

// Covered reports whether a mount of the spec covers /etc or a directory above it, so that files
// in the root filesystem would not be visible.
func Covered(mounts []specs.Mount) bool {
	return slices.ContainsFunc(mounts, func(m specs.Mount) bool {
		return strings.HasPrefix("/"+dir+"/", strings.TrimSuffix(path.Clean("/"+m.Destination), "/")+"/")
	})
}

// room is how many bytes the small file system has besides the files.
const room = 64 << 10

// Share returns a directory with the files of names for read-only binds. It is on a file system
// of the sandbox's own: a container that may change its mounts can make it writable and fill it,
// at the expense of its own memory limit. roots is used to mount it.
func Share(ctx context.Context, roots core.Roots, sb *core.Sandbox, names []string) (string, error) {
	at := filepath.Join(sb.Dir, dir)
	if Shared(sb) {
		return at, nil
	}
	if err := os.Mkdir(at, 0o700); errors.Is(err, fs.ErrExist) {
		// A create that failed may have left it.
		if err := roots.Unmount(ctx, at); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	files, size := map[string][]byte{}, room
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(sb.Dir, name))
		if err != nil {
			return "", err
		}
		files[name], size = content, size+len(content)
	}
	options := []string{"nosuid", "nodev", "noexec", "mode=755", "nr_inodes=16", fmt.Sprintf("size=%d", size)}
	if label := sb.Config.FileLabel; label != "" {
		options = append(options, "context="+label)
	}
	err := roots.Mount(ctx, at, []core.Mount{{Type: "tmpfs", Source: dir, Options: options}}, false)
	if err != nil {
		return "", err
	}
	in, err := os.OpenRoot(at)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	for name, content := range files {
		if err := write(in, name, content, owner{}); err != nil {
			return "", fmt.Errorf("write %s: %w", filepath.Join(at, name), err)
		}
	}
	// This is created last, and so shows that all files exist.
	return at, in.Mkdir(whole, 0o700)
}

// whole is the name of the directory that exists when all files do.
const whole = ".whole"

// Shared reports whether the directory of Share exists.
func Shared(sb *core.Sandbox) bool {
	_, err := os.Lstat(filepath.Join(sb.Dir, dir, whole))
	return err == nil
}

// Remove removes the directory of Share. It succeeds when there is nothing.
func Remove(ctx context.Context, roots core.Roots, sandbox string) error {
	at := filepath.Join(sandbox, dir)
	if _, err := os.Lstat(at); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := roots.Unmount(ctx, at); err != nil {
		return err
	}
	// If it is still mounted, this fails and deletes nothing in it.
	return os.Remove(at)
}
