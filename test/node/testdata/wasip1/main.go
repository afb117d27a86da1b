// Command wasip1 is a web server as a WebAssembly module. It serves the greeting and the mount that its argument names, until it is asked to stop.
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
		Listen, Data, Site, Shutdown *thing
		Greeting                     string
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
	if arg.Listen == nil {
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
			_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\n"+text)
		}()
	}
}

// open opens what was granted so that waiting for it keeps nobody else waiting. What os.Open opens, net cannot use.
func open(path string) *os.File {
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	fail(err)
	fail(syscall.SetNonblock(fd, true))
	return os.NewFile(uintptr(fd), path)
}

func fail(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(3)
	}
}
