// Command wasip1 is a web server as a WebAssembly module. It serves the greeting and the mount that its argument names, until it is asked to
// stop. It greets on the board, too.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
)

type thing struct {
	Path string `json:"path"`
}

func main() {
	var arg struct {
		Listen, Data, Site, Shutdown, Serve, Connect *thing
		Greeting                                     string
		// Ask lets a program without a listener try to reach the board, too.
		Ask bool
	}
	text, err := os.ReadFile("/argdata.json")
	if err == nil {
		err = json.Unmarshal(text, &arg)
	}
	fail(err)
	fmt.Printf("environment %q, arguments %q\n", os.Environ(), os.Args[1:])
	if _, err := os.ReadFile("/etc/passwd"); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		fmt.Println("read what was not given:", err)
	}
	if arg.Serve != nil {
		s, err := net.FileListener(open(arg.Serve.Path))
		fail(err)
		go greet(s, arg.Greeting)
	}
	if arg.Listen == nil {
		if arg.Ask {
			fmt.Println(ask(arg.Connect))
		}
		_, err := os.Open("/fd/5") // its log is 4
		fail(err)
	}
	l, err := net.FileListener(open(arg.Listen.Path))
	fail(err)
	if arg.Shutdown != nil {
		stop := open(arg.Shutdown.Path)
		go func() {
			_, err := io.Copy(io.Discard, stop)
			fmt.Println("asked to stop:", err)
			os.Exit(7)
		}()
	}
	fmt.Println("serving")
	for {
		c, err := l.Accept()
		fail(err)
		go func() {
			defer func() { _ = c.Close() }()
			buf := make([]byte, 4096)
			n, _ := c.Read(buf)
			text := arg.Greeting
			if request, ok := strings.CutPrefix(string(buf[:n]), "GET /write?text="); ok {
				word, _, _ := strings.Cut(request, " ")
				text = fmt.Sprint(os.WriteFile(arg.Data.Path+"/written", []byte(word), 0o600))
			}
			if strings.HasPrefix(string(buf[:n]), "GET /site ") {
				index, err := os.ReadFile(arg.Site.Path + "/index")
				fail(err)
				text = fmt.Sprintf("%s, write: %v", index, os.WriteFile(arg.Site.Path+"/index", nil, 0o600))
			}
			if strings.HasPrefix(string(buf[:n]), "GET /board ") {
				text = ask(arg.Connect)
			}
			_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\n"+text)
		}()
	}
}

// greet greets each client on the board.
func greet(l net.Listener, greeting string) {
	for {
		c, err := l.Accept()
		fail(err)
		_, _ = io.WriteString(c, greeting)
		_ = c.Close()
	}
}

// ask returns what a server on the board says, or why there is none.
func ask(service *thing) string {
	path := "/svc/connect" // where it would be if it were given
	if service != nil {
		path = service.Path
	}
	f, err := tryOpen(path)
	if err != nil {
		return "board: " + err.Error()
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(f)
	if err != nil {
		return "board: " + err.Error()
	}
	return string(text)
}

// open is tryOpen of what must be there.
func open(path string) *os.File {
	f, err := tryOpen(path)
	fail(err)
	return f
}

// tryOpen opens what was granted so that waiting for it keeps nobody else waiting. What os.Open opens, net cannot use.
func tryOpen(path string) (*os.File, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err == nil {
		err = syscall.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func fail(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(3)
	}
}
