package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

func (e *Engine) filesFor(ctx context.Context, sb core.Sandbox) (Files, error) {
	if e.o.Files != nil {
		return e.o.Files(ctx, sb)
	}
	return plainFiles(sb), nil
}

// plainFiles makes the three files of the record alone.
func plainFiles(sb core.Sandbox) Files {
	var f Files
	dns := sb.Config.Network.DNS
	for _, s := range cmpSlice(dns.Servers, sb.Network.DNS.Servers) {
		f.ResolvConf = fmt.Appendf(f.ResolvConf, "nameserver %s\n", s)
	}
	if s := cmpSlice(dns.Searches, sb.Network.DNS.Searches); len(s) > 0 {
		f.ResolvConf = fmt.Appendf(f.ResolvConf, "search %s\n", strings.Join(s, " "))
	}
	if o := cmpSlice(dns.Options, sb.Network.DNS.Options); len(o) > 0 {
		f.ResolvConf = fmt.Appendf(f.ResolvConf, "options %s\n", strings.Join(o, " "))
	}
	f.Hosts = []byte("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	name := cmp.Or(sb.Config.Hostname, sb.ID.Short())
	for _, a := range sb.Network.Addrs {
		f.Hosts = fmt.Appendf(f.Hosts, "%s\t%s\n", a, name)
	}
	addrs := make([]string, 0, len(sb.Config.Network.Hosts))
	for a := range sb.Config.Network.Hosts {
		addrs = append(addrs, a)
	}
	slices.Sort(addrs)
	for _, a := range addrs {
		f.Hosts = fmt.Appendf(f.Hosts, "%s\t%s\n", a, strings.Join(sb.Config.Network.Hosts[a], " "))
	}
	if sb.Config.Namespaces.UTS.Mode != core.Host {
		f.Hostname = []byte(name + "\n")
	}
	return f
}

func cmpSlice(a, b []string) []string {
	if len(a) > 0 {
		return a
	}
	return b
}

// The files of a sandbox's directory and where containers see them.
const (
	fileResolv   = "resolv.conf"
	fileHosts    = "hosts"
	fileHostname = "hostname"
)

func writeFiles(dir string, f Files) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{fileResolv: f.ResolvConf, fileHosts: f.Hosts, fileHostname: f.Hostname} {
		if len(content) == 0 {
			continue
		}
		// Not by atomicfile: a sandbox with half a file is not ready, and
		// recovery removes it.
		if err := root.WriteFile(name, content, 0o644); err != nil {
			return errors.Join(err, root.Close())
		}
	}
	return root.Close()
}

// makeBundle makes a bundle's directories. Others may pass through them: a
// mapped root has to reach its root filesystem.
func (e *Engine) makeBundle(dir string) error {
	return os.MkdirAll(filepath.Join(dir, "rootfs"), 0o711)
}

// removeBundle unmounts and removes a bundle; it succeeds when there is none.
func (e *Engine) removeBundle(dir string) error {
	// Not RemoveAll below rootfs: what is mounted there is not ours to
	// delete, should it still be.
	err := os.Remove(filepath.Join(dir, "rootfs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}

// removeSandboxDir unmounts the shared memory and removes the directory.
func (e *Engine) removeSandboxDir(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	if err := e.unmountShm(ctx, dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func (e *Engine) unmountShm(ctx context.Context, dir string) error {
	shm := filepath.Join(dir, "shm")
	if _, err := os.Lstat(shm); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := e.o.Roots.Unmount(ctx, shm); err != nil {
		return err
	}
	// Should it still be mounted, this fails and nothing in it is deleted.
	return os.Remove(shm)
}

// hasFile reports whether the sandbox has one of the three files.
func (b *build) hasFile(name string) bool {
	if b.sb.Dir == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(b.sb.Dir, name))
	return err == nil
}
