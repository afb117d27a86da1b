package mesos

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/test/nodetest"
)

// screen is the command line on a terminal.
type screen struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	done   sync.WaitGroup

	mu   sync.Mutex
	text strings.Builder
	seen int // end of the last match in text
}

// onTerminal starts the command line on a terminal of its own.
func (r *rig) onTerminal(rows, cols uint16, args ...string) *screen {
	r.t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	s := &screen{t: r.t, master: master}
	var number int
	s.control(func(fd int) (err error) {
		if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		}
		return err
	})
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = slave.Close() }()
	s.resize(rows, cols)
	s.cmd = r.command(r.t.Context(), args...)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = slave, slave, slave
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	s.done.Go(s.read)
	return s
}

func (s *screen) control(do func(fd int) error) {
	s.t.Helper()
	conn, err := s.master.SyscallConn()
	if err != nil {
		s.t.Fatal(err)
	}
	var derr error
	if err := conn.Control(func(fd uintptr) { derr = do(int(fd)) }); err != nil || derr != nil {
		s.t.Fatalf("terminal: %v, %v", err, derr)
	}
}

// read collects the terminal's output until the last process has closed it.
func (s *screen) read() {
	buf := make([]byte, 4096)
	for {
		n, err := s.master.Read(buf)
		s.mu.Lock()
		s.text.Write(buf[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *screen) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screen) types(text string) {
	s.t.Helper()
	if _, err := s.master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// shows waits until text is on the screen, after the last match.
func (s *screen) shows(text string) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("on the screen: %q", s.all())
		}
	}()
	nodetest.Eventually(s.t, fmt.Sprintf("the screen shows %q", text), func() bool {
		all := s.all()
		i := strings.Index(all[s.seen:], text)
		if i >= 0 {
			s.seen += i + len(text)
		}
		return i >= 0
	})
}

func (s *screen) resize(rows, cols uint16) {
	s.t.Helper()
	s.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// ended waits for the command line and returns its exit code.
func (s *screen) ended() int {
	_ = s.cmd.Wait()
	s.done.Wait()
	_ = s.master.Close()
	return s.cmd.ProcessState.ExitCode()
}
