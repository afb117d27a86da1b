package kata

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Of FUSE's protocol, as Linux' include/uapi/linux/fuse.h has it: the numbers of questions,
// and the lengths of a question's head, of an answer's, and of two answers.
const (
	fuseLookup  = 1
	fuseGetattr = 3
	fuseInit    = 26

	fuseQuestion = 40
	fuseAnswer   = 16
	fuseInitOut  = 64
	fuseAttrOut  = 104
)

// silent is a FUSE server of one directory. It does not answer lookups of files in it.
type silent struct {
	dev    *os.File
	asked  chan struct{} // closed at the first lookup
	served sync.WaitGroup
}

// mountSilent mounts a file system that lasts until close or the test's end.
func mountSilent(t *testing.T, dir string) *silent {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		t.Skipf("there is no FUSE here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	// Before the mount nothing could wait for the device to become readable.
	err = unix.Mount("silent", dir, "fuse", unix.MS_NODEV|unix.MS_NOSUID, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd))
	s := &silent{dev: os.NewFile(uintptr(fd), "/dev/fuse"), asked: make(chan struct{})}
	t.Cleanup(func() { _ = s.dev.Close() }) // most often it was closed
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s.served.Go(s.serve)
	return s
}

func (s *silent) serve() {
	buf := make([]byte, 64<<10)
	for {
		n, err := s.dev.Read(buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) { // the asker is gone
			continue
		}
		if err != nil || n < fuseQuestion {
			return // it was closed
		}
		switch buf[4] {
		case fuseLookup:
			select {
			case <-s.asked:
			default:
				close(s.asked)
			}
			continue
		case fuseInit:
			out := make([]byte, fuseInitOut)
			binary.NativeEndian.PutUint32(out, 7) // the protocol's version
			binary.NativeEndian.PutUint32(out[4:], 31)
			binary.NativeEndian.PutUint32(out[20:], 4096) // the most that one write has
			s.answer(buf, 0, out)
		case fuseGetattr:
			out := make([]byte, fuseAttrOut)
			binary.NativeEndian.PutUint64(out, 1<<20) // seconds of validity
			binary.NativeEndian.PutUint64(out[16:], 1)
			binary.NativeEndian.PutUint32(out[76:], unix.S_IFDIR|0o755)
			binary.NativeEndian.PutUint32(out[80:], 2) // links
			s.answer(buf, 0, out)
		default:
			s.answer(buf, unix.ENOSYS, nil)
		}
	}
}

func (s *silent) answer(question []byte, errno unix.Errno, body []byte) {
	head := make([]byte, fuseAnswer, fuseAnswer+len(body))
	binary.NativeEndian.PutUint32(head, uint32(fuseAnswer+len(body)))
	binary.NativeEndian.PutUint32(head[4:], uint32(-int32(errno)))
	copy(head[8:], question[8:16])
	_, _ = s.dev.Write(append(head, body...)) // the asker may be gone
}

// close ends the file system: waiting questions get an error.
func (s *silent) close(t *testing.T) {
	t.Helper()
	if err := s.dev.Close(); err != nil {
		t.Fatal(err)
	}
	s.served.Wait()
}
