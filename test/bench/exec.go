package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// executions counts the programs that one pod start, and one stop and removal,
// execute on the node's own filesystem. The container's own program is on an
// overlay of its own and not counted.
func (b *bench) executions(ctx context.Context) error {
	if b.server == nil {
		return nil // a foreign server is not in our pid namespace
	}
	w, err := watchExecutions("/")
	if err != nil {
		fmt.Printf("%-28s cannot be counted here: %v\n", "program executions", err)
		return nil
	}
	defer w.close()
	p, err := b.up(ctx)
	if err != nil {
		return err
	}
	start, err := w.take()
	if err != nil {
		return err
	}
	if err := b.down(ctx, p); err != nil {
		return err
	}
	gone, err := w.take()
	if err != nil {
		return err
	}
	fmt.Printf("%-28s %8d beside the container's own %v\n", "executions per pod start", len(start), start)
	fmt.Printf("%-28s %8d %v\n", "executions per stop+remove", len(gone), gone)
	return nil
}

// execWatch collects the names of the programs opened for execution on one
// filesystem by processes of this pid namespace.
type execWatch struct {
	f      *os.File
	marker string
	events chan string
	done   sync.WaitGroup
}

func watchExecutions(path string) (*execWatch, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK|unix.FAN_UNLIMITED_QUEUE, unix.O_RDONLY|unix.O_LARGEFILE|unix.O_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fanotify_init", err)
	}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_OPEN_EXEC, unix.AT_FDCWD, path); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fanotify_mark", err)
	}
	w := &execWatch{f: os.NewFile(uintptr(fd), "fanotify"), events: make(chan string, 1024), marker: "true"}
	w.done.Go(w.read)
	return w, nil
}

func (w *execWatch) close() {
	_ = w.f.Close()
	w.done.Wait()
}

func (w *execWatch) read() {
	defer close(w.events)
	buf := make([]byte, 64<<10)
	const size = int(unsafe.Sizeof(unix.FanotifyEventMetadata{}))
	for {
		n, err := w.f.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= size; {
			length := int(binary.NativeEndian.Uint32(b))
			fd := int(int32(binary.NativeEndian.Uint32(b[16:])))
			pid := int(int32(binary.NativeEndian.Uint32(b[20:])))
			if fd >= 0 {
				name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
				foreign := inLayer(fd, name)
				_ = unix.Close(fd)
				// The ELF interpreter is opened with its program; processes of
				// other pid namespaces have no pid here.
				if err == nil && !foreign && pid != 0 && !strings.HasPrefix(filepath.Base(name), "ld-") {
					w.events <- filepath.Base(name)
				}
			}
			b = b[length:]
		}
	}
}

// inLayer reports whether the file is one that an overlay has opened below
// itself, as Linux 6.18 tells: its path is then that in the overlay's own mount
// of the layer, and leads us to another file or to none.
func inLayer(fd int, name string) bool {
	var opened, found unix.Stat_t
	if unix.Fstat(fd, &opened) != nil || unix.Stat(name, &found) != nil {
		return true
	}
	return opened.Dev != found.Dev || opened.Ino != found.Ino
}

// take returns the programs that were executed since the last take. It runs a program of its own
// and waits to see it: events come in order, so nothing is outstanding then.
func (w *execWatch) take() ([]string, error) {
	p, err := os.StartProcess("/bin/"+w.marker, []string{w.marker}, &os.ProcAttr{})
	if err != nil {
		return nil, err
	}
	if _, err := p.Wait(); err != nil {
		return nil, err
	}
	var names []string
	timeout := time.NewTimer(10 * time.Second)
	defer timeout.Stop()
	for {
		select {
		case name, ok := <-w.events:
			if !ok {
				return nil, errors.New("the watch on executions ended")
			}
			if name == w.marker {
				return names, nil
			}
			names = append(names, name)
		case <-timeout.C:
			return nil, errors.New("the watch on executions is silent")
		}
	}
}
