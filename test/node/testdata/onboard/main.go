// Command onboard is a static program on the board. With a handle to serve, it tells each client who it is and whom it takes the
// client for, and sends back what comes. With a handle to connect, it makes connections until it is told to stop, keeps some of them, and
// writes down how each of them went.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/program"
)

type descriptor struct {
	FD uintptr `json:"fd"`
}

type ask struct {
	Labels map[string]string
	Want   string
}

type argument struct {
	Name           string
	Serve, Connect *descriptor
	Data           descriptor
	Asks           []ask
	Count          int
	// Role is "giver" of a program that sends its own handle away, "taker" of one that uses a handle that it was sent,
	// "reader" of one that asks the agent.
	Role string
}

func main() {
	var arg argument
	err := json.NewDecoder(os.NewFile(3, "argdata")).Decode(&arg)
	switch {
	case err != nil:
	case arg.Role == "giver":
		err = give(arg)
	case arg.Role == "taker":
		err = take(arg)
	case arg.Role == "reader":
		err = read(arg)
	case arg.Serve != nil:
		err = serve(arg)
	default:
		err = connect(arg)
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(3)
	}
}

func serve(arg argument) error {
	h, err := program.Open(arg.Serve.FD)
	if err != nil {
		return err
	}
	s, err := h.Serve(context.Background(), nil)
	if err != nil {
		return err
	}
	fmt.Println("serving")
	for {
		c, err := s.AcceptConn()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = c.Close() }()
			_, _ = fmt.Fprintf(c, "%s for %s/%s\n", arg.Name, c.Labels["client_owner"], c.Labels["client_namespace"])
			lines := bufio.NewScanner(c)
			for lines.Scan() {
				_, _ = fmt.Fprintln(c, lines.Text())
			}
		}()
	}
}

// connection is one with the lines that come over it.
type connection struct {
	*program.Conn
	lines *bufio.Reader
}

func (a ask) open(h *program.Handle) (connection, error) {
	c, err := h.Connect(context.Background(), a.Labels)
	if err != nil {
		return connection{}, err
	}
	r := bufio.NewReader(c)
	got, err := r.ReadString('\n')
	if err == nil && got != a.Want+"\n" {
		err = fmt.Errorf("wrong: reached %q, want %q", got, a.Want)
	}
	return connection{c, r}, err
}

func connect(arg argument) error {
	h, err := program.Open(arg.Connect.FD)
	if err != nil {
		return err
	}
	var kept []connection
	for _, a := range arg.Asks {
		c, err := a.open(h)
		if err != nil {
			return err
		}
		kept = append(kept, c)
	}
	made := 0
	tick := time.NewTicker(5 * time.Millisecond)
	for range tick.C {
		for i, a := range arg.Asks {
			c, err := a.open(h)
			if err != nil {
				return write(arg, fmt.Sprintf("connection %d: %v", made, err))
			}
			_ = c.Close()
			made++
			text := fmt.Sprintln("ping", made)
			if _, err := fmt.Fprint(kept[i], text); err != nil {
				return write(arg, fmt.Sprintf("one that was kept is lost: %v", err))
			}
			if got, err := kept[i].lines.ReadString('\n'); err != nil || got != text {
				return write(arg, fmt.Sprintf("one that was kept is lost: %q, %v", got, err))
			}
		}
		if made >= arg.Count && told(arg) {
			return write(arg, fmt.Sprintf("right %d kept %d", made, len(kept)))
		}
	}
	return nil
}

// told reports whether the program is to stop.
func told(arg argument) bool {
	fd, err := unix.Openat(int(arg.Data.FD), "stop", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err == nil
}

// write writes the result, and begins no file before it has all of it.
func write(arg argument, text string) error {
	fmt.Println(text)
	dir := int(arg.Data.FD)
	fd, err := unix.Openat(dir, "part", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return err
	}
	_ = unix.Close(fd)
	return unix.Renameat(dir, "part", dir, "result")
}

// give sends the program's handle to a server, and ends when it is told to.
func give(arg argument) error {
	h, err := program.Open(dup(arg.Connect.FD))
	if err != nil {
		return err
	}
	c, err := h.Connect(context.Background(), nil)
	if err != nil {
		return err
	}
	if _, _, err := c.WriteMsgUnix([]byte("x"), unix.UnixRights(int(arg.Connect.FD)), nil); err != nil {
		return err
	}
	for range time.Tick(5 * time.Millisecond) {
		if told(arg) {
			return nil
		}
	}
	return nil
}

// take uses a handle that a client has sent until that has ended, and writes down as whom.
func take(arg argument) error {
	h, err := program.Open(arg.Serve.FD)
	if err != nil {
		return err
	}
	s, err := h.Serve(context.Background(), nil)
	if err != nil {
		return err
	}
	c, err := s.AcceptConn()
	if err != nil {
		return err
	}
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	given, err := program.Open(uintptr(fds[0]))
	if err != nil {
		return err
	}
	last, used := map[string]string{}, 0
	for range time.Tick(5 * time.Millisecond) {
		labels, _, err := given.Show(context.Background())
		if err != nil {
			return write(arg, fmt.Sprintf("used %d times as %s, then: %v", used, last["client_container"], err))
		}
		if last = labels; used == 0 {
			if err := mark(arg, "used"); err != nil {
				return err
			}
		}
		used++
	}
	return nil
}

func dup(fd uintptr) uintptr {
	n, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fd
	}
	return uintptr(n)
}

// mark makes a file.
func mark(arg argument, name string) error {
	fd, err := unix.Openat(int(arg.Data.FD), name, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}
