package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/ocispec"
)

// mountLongOverlay mounts an overlay with options longer than the page that mount(2) accepts. It
// first tries names relative to a directory that contains all layers, then adds layer by layer with
// fsconfig(2) (Linux 6.5), where each name may have 255 bytes.
func mountLongOverlay(source, target string, opts ocispec.MountOptions) error {
	base, data := shorten(opts.Data)
	if base != "" && len(data) < os.Getpagesize()-1 {
		return mountFrom(base, source, target, opts.Flags, data)
	}
	err := mountByLayer(source, target, opts)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("overlay options of %d bytes are too many for this kernel: %w", len(strings.Join(opts.Data, ",")), err)
	}
	return err
}

// shorten makes lowerdir relative to the deepest directory that contains all layers. It
// returns that directory and the new options, or "" if that directory is the root or a
// layer's name has an escape in it.
func shorten(options []string) (base, data string) {
	lower := -1
	for i, o := range options {
		if strings.HasPrefix(o, "lowerdir=") {
			lower = i
		}
	}
	if lower < 0 || strings.Contains(options[lower], `\`) {
		return "", ""
	}
	layers := strings.Split(strings.TrimPrefix(options[lower], "lowerdir="), ":")
	base = filepath.Dir(layers[0])
	for _, l := range layers {
		if !filepath.IsAbs(l) {
			return "", ""
		}
		for base != "/" && !strings.HasPrefix(l, base+"/") {
			base = filepath.Dir(base)
		}
	}
	if base == "/" {
		return "", ""
	}
	for i, l := range layers {
		layers[i] = strings.TrimPrefix(l, base+"/")
	}
	out := append([]string(nil), options...)
	out[lower] = "lowerdir=" + strings.Join(layers, ":")
	return base, joined(out)
}

// mountFrom mounts on a thread with base as its working directory. The thread cannot share the
// process's working directory again, so it ends here.
func mountFrom(base, source, target string, flags uintptr, data string) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			done <- fmt.Errorf("unshare working directory: %w", err)
			return
		}
		if err := unix.Chdir(base); err != nil {
			done <- fmt.Errorf("change to %s: %w", base, err)
			return
		}
		done <- unix.Mount(source, target, "overlay", flags, data)
	}()
	return <-done
}

func mountByLayer(source, target string, opts ocispec.MountOptions) error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	set := func(key, value string) error {
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return fmt.Errorf("overlay option %s=%s: %w", key, value, err)
		}
		return nil
	}
	if err := set("source", source); err != nil {
		return err
	}
	for _, o := range opts.Data {
		key, value, has := strings.Cut(o, "=")
		switch {
		case key == "lowerdir":
			for _, l := range strings.Split(value, ":") {
				if err := set("lowerdir+", l); err != nil {
					return err
				}
			}
		case has:
			if err := set(key, value); err != nil {
				return err
			}
		default:
			if err := unix.FsconfigSetFlag(fs, key); err != nil {
				return fmt.Errorf("overlay option %s: %w", key, err)
			}
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("create overlay: %w", err)
	}
	return attach(fs, target, opts.Flags)
}

// attrs are the flags of mount(2) that belong to a mount and not to its filesystem.
func attrs(flags uintptr) int {
	var a int
	for _, p := range []struct {
		ms   uintptr
		attr int
	}{
		{unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY},
		{unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID},
		{unix.MS_NODEV, unix.MOUNT_ATTR_NODEV},
		{unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC},
		{unix.MS_NOATIME, unix.MOUNT_ATTR_NOATIME},
		{unix.MS_STRICTATIME, unix.MOUNT_ATTR_STRICTATIME},
		{unix.MS_NODIRATIME, unix.MOUNT_ATTR_NODIRATIME},
		{unix.MS_NOSYMFOLLOW, unix.MOUNT_ATTR_NOSYMFOLLOW},
	} {
		if flags&p.ms != 0 {
			a |= p.attr
		}
	}
	return a
}
