//go:build amd64

package main

import (
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func ptr(s string) uintptr {
	b := append([]byte(s), 0)
	kept = append(kept, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

// kept keeps the targets of raw calls' pointers.
var kept [][]byte //nolint:gochecknoglobals // the program is one run of attempts

const here = ^uintptr(99) // AT_FDCWD

// paths are attempts to find the image, the kernel's file systems and devices by their paths.
func paths() []attempt {
	list := map[string]func(*world) error{}
	for _, p := range []string{"/etc/secret", "/etc", "/proc/self/maps", "/proc/1/status", "/sys/kernel/uevent_seqnum", "/dev/zero", "/data", "/program"} {
		list["open "+p] = func(*world) error { return rawOpened(unix.SYS_OPEN, ptr(p), unix.O_RDONLY|unix.O_CLOEXEC) }
		list["openat "+p] = func(*world) error { return opened(unix.Openat(unix.AT_FDCWD, p, unix.O_RDONLY|unix.O_CLOEXEC, 0)) }
		list["openat of a path alone "+p] = func(*world) error { return opened(unix.Openat(unix.AT_FDCWD, p, unix.O_PATH|unix.O_CLOEXEC, 0)) }
		list["openat2 "+p] = func(*world) error {
			return opened(unix.Openat2(unix.AT_FDCWD, p, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC}))
		}
	}
	const p = "/etc/secret"
	var st unix.Stat_t
	var stx unix.Statx_t
	var fs unix.Statfs_t
	list["stat"] = func(*world) error { return unix.Stat(p, &st) }
	list["lstat"] = func(*world) error { return unix.Lstat(p, &st) }
	list["statx"] = func(*world) error { return unix.Statx(unix.AT_FDCWD, p, 0, unix.STATX_ALL, &stx) }
	list["access"] = func(*world) error { return unix.Access(p, unix.R_OK) }
	list["faccessat2"] = func(*world) error { return unix.Faccessat(unix.AT_FDCWD, p, unix.R_OK, unix.AT_EACCESS) }
	list["readlink"] = func(*world) error { _, err := unix.Readlink("/etc/link", make([]byte, 64)); return err }
	list["statfs"] = func(*world) error { return unix.Statfs("/proc", &fs) }
	list["creat"] = func(*world) error { return rawOpened(unix.SYS_CREAT, ptr("/etc/made"), 0o600) }
	list["mkdir"] = func(*world) error { return raw(unix.SYS_MKDIR, ptr("/made"), 0o700) }
	list["truncate"] = func(*world) error { return unix.Truncate("/etc/shrunk", 0) }
	list["chmod"] = func(*world) error { return raw(unix.SYS_CHMOD, ptr("/etc/shrunk"), 0o644) }
	list["chdir"] = func(*world) error { return raw(unix.SYS_CHDIR, ptr("/etc")) }
	list["inotify"] = func(*world) error {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err == nil {
			_, err = unix.InotifyAddWatch(fd, "/etc", unix.IN_MODIFY)
			_ = unix.Close(fd)
		}
		return err
	}
	list["name_to_handle_at"] = func(*world) error { _, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/data", 0); return err }
	list["getxattr"] = func(*world) error {
		_, err := unix.Listxattr(p, nil)
		return err
	}
	list["entries of /"] = func(*world) error {
		fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		b := make([]byte, 4096)
		n, err := unix.Getdents(fd, b)
		if err == nil && !strings.Contains(string(b[:max(n, 0)]), "etc") {
			err = errNothing
		}
		return err
	}
	return of("paths", list)
}

// parents are attempts to leave a granted directory by its parent.
func parents() []attempt {
	list := map[string]func(*world) error{}
	var st unix.Stat_t
	for _, p := range []string{"../etc/secret", "../../../../../../etc/secret", "./../etc/secret", "sub/../../etc/secret", "../proc/self/maps", "../read/../etc/secret"} {
		list["openat "+p] = func(w *world) error { return opened(unix.Openat(w.data, p, unix.O_RDONLY|unix.O_CLOEXEC, 0)) }
		list["fstatat "+p] = func(w *world) error { return unix.Fstatat(w.data, p, &st, 0) }
	}
	list["openat2"] = func(w *world) error {
		return opened(unix.Openat2(w.data, "../etc/secret", &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC}))
	}
	list["of the readable directory"] = func(w *world) error {
		return opened(unix.Openat(w.read, "../etc/secret", unix.O_RDONLY|unix.O_CLOEXEC, 0))
	}
	list["fchdir and open"] = func(w *world) error {
		if err := raw(unix.SYS_FCHDIR, uintptr(w.data)); err != nil {
			return err
		}
		return rawOpened(unix.SYS_OPEN, ptr("../etc/secret"), unix.O_RDONLY|unix.O_CLOEXEC)
	}
	list["faccessat"] = func(w *world) error { return raw(unix.SYS_FACCESSAT, uintptr(w.data), ptr("../etc/secret"), unix.R_OK) }
	list["readlinkat"] = func(w *world) error { _, err := unix.Readlinkat(w.data, "../etc/link", make([]byte, 64)); return err }
	list["mkdirat"] = func(w *world) error { return outside(w, "made-beside", unix.Mkdirat(w.data, "../made-beside", 0o700)) }
	list["symlinkat"] = func(w *world) error { return outside(w, "link-beside", unix.Symlinkat("x", w.data, "../link-beside")) }
	list["renameat"] = func(w *world) error {
		return unix.Renameat(w.data, "../etc/moved", w.data, "../etc/moved-on")
	}
	list["unlinkat"] = func(w *world) error { return unix.Unlinkat(w.data, "../etc/removed", 0) }
	list["parent itself"] = func(w *world) error {
		var own unix.Stat_t
		if err := unix.Fstat(w.data, &own); err != nil {
			return err
		}
		if err := unix.Fstatat(w.data, "..", &st, 0); err != nil {
			return err
		}
		if st.Dev == own.Dev && st.Ino == own.Ino {
			return errNothing
		}
		return nil
	}
	return of("parents", list)
}

// outside fails for a file in the directory itself, which is its own parent.
func outside(w *world, name string, err error) error {
	var st unix.Stat_t
	if err == nil && unix.Fstatat(w.data, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return errNothing
	}
	return err
}

// links are attempts by symbolic and hard links.
func links() []attempt {
	list := map[string]func(*world) error{}
	for name, to := range map[string]string{
		"absolute": "/etc/secret", "relative": "../etc/secret", "by proc": "/proc/self/root/etc/secret", "by a process": "/proc/self/cwd/../etc/secret", "to a directory": "/etc",
	} {
		file := "link-" + strings.ReplaceAll(name, " ", "-")
		list["symlink "+name] = func(w *world) error {
			_ = unix.Symlinkat(to, w.data, file)
			return opened(unix.Openat(w.data, file, unix.O_RDONLY|unix.O_CLOEXEC, 0))
		}
		list["stat through symlink "+name] = func(w *world) error {
			var st unix.Stat_t
			_ = unix.Symlinkat(to, w.data, file)
			return unix.Fstatat(w.data, file, &st, 0)
		}
	}
	list["hard link to another file"] = func(w *world) error {
		return unix.Linkat(unix.AT_FDCWD, "/data/kept", w.data, "hard", 0)
	}
	list["hard link by proc"] = func(w *world) error {
		fd, err := unix.Openat(w.data, "kept", unix.O_RDONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+itoa(fd), w.data, "hard-by-proc", unix.AT_SYMLINK_FOLLOW)
	}
	return of("links", list)
}

// rights are attempts to change read-only files.
func rights() []attempt {
	return of("rights", map[string]func(*world) error{
		"create": func(w *world) error {
			return opened(unix.Openat(w.read, "new", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600))
		},
		"write": func(w *world) error { return opened(unix.Openat(w.read, "file", unix.O_WRONLY|unix.O_CLOEXEC, 0)) },
		"append": func(w *world) error {
			return opened(unix.Openat(w.read, "file", unix.O_RDWR|unix.O_APPEND|unix.O_CLOEXEC, 0))
		},
		"truncate at the opening": func(w *world) error {
			return opened(unix.Openat(w.read, "file", unix.O_RDONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0))
		},
		"a file without a name": func(w *world) error {
			return opened(unix.Openat(w.read, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600))
		},
		"mkdir":   func(w *world) error { return unix.Mkdirat(w.read, "made", 0o700) },
		"symlink": func(w *world) error { return unix.Symlinkat("x", w.read, "link") },
		"link":    func(w *world) error { return unix.Linkat(w.read, "file", w.read, "linked", 0) },
		"chmod":   func(w *world) error { return unix.Fchmodat(w.read, "file", 0o640, 0) },
		"chown":   func(w *world) error { return unix.Fchownat(w.read, "file", 1, 1, 0) },
		"times":   func(w *world) error { return unix.UtimesNanoAt(w.read, "file", make([]unix.Timespec, 2), 0) },
		"move":    func(w *world) error { return unix.Renameat(w.read, "moved", w.read, "sub/moved") },
		"rename":  func(w *world) error { return unix.Renameat(w.read, "renamed", w.read, "again") },
		"remove":  func(w *world) error { return unix.Unlinkat(w.read, "removed", 0) },
	})
}

// files are attempts to make of a writable directory more than files.
func files() []attempt {
	made := func(w *world) error {
		fd, err := unix.Openat(w.data, "tool", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o755)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		_, err = unix.Write(fd, exits)
		return err
	}
	argv := func() uintptr {
		a := []uintptr{ptr("tool"), 0}
		return uintptr(unsafe.Pointer(&a[0]))
	}
	return of("files", map[string]func(*world) error{
		"execute by path": func(w *world) error {
			if err := made(w); err != nil {
				return err
			}
			return inChild(unix.SYS_EXECVE, ptr("/data/tool"), argv(), 0)
		},
		"execute below the directory": func(w *world) error {
			if err := made(w); err != nil {
				return err
			}
			return inChild(unix.SYS_EXECVEAT, uintptr(w.data), ptr("tool"), argv(), 0, 0)
		},
		// It takes the number that the filter lets the program's own file have.
		"execute by the program's number": func(w *world) error {
			if err := made(w); err != nil {
				return err
			}
			fd, err := unix.Openat(w.data, "tool", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return executes(fd, w.program)
		},
		"execute from the readable directory by the program's number": func(w *world) error {
			fd, err := unix.Openat(w.read, "tool", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return executes(fd, w.program)
		},
		"fifo":             func(w *world) error { return unix.Mknodat(w.data, "fifo", unix.S_IFIFO|0o600, 0) },
		"character device": func(w *world) error { return unix.Mknodat(w.data, "null", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))) },
		"block device":     func(w *world) error { return unix.Mknodat(w.data, "disk", unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))) },
		"socket": func(w *world) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Bind(fd, &unix.SockaddrUnix{Name: "/data/socket"})
		},
		"extended attribute": func(w *world) error {
			fd, err := unix.Openat(w.data, "kept", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Fsetxattr(fd, "trusted.x", []byte("x"), 0)
		},
	})
}
