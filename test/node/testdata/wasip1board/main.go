// Command wasip1board is a WebAssembly module on the board: a client that writes down what a server says, or a server that says its name
// and sends back what comes.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
)

type thing struct {
	Path string `json:"path"`
}

func main() {
	var arg struct {
		Serve, Connect, Nobody *thing
		Name                   string
	}
	text, err := os.ReadFile("/argdata.json")
	if err == nil {
		err = json.Unmarshal(text, &arg)
	}
	fail(err)
	if arg.Connect != nil {
		if _, err := os.Open(arg.Nobody.Path); !errors.Is(err, fs.ErrNotExist) {
			fail(fmt.Errorf("a service that is not there: %w", err))
		}
		line, err := bufio.NewReader(open(arg.Connect.Path)).ReadString('\n')
		fail(err)
		fmt.Printf("%s says %s", arg.Connect.Path, line)
		return
	}
	l, err := net.FileListener(open(arg.Serve.Path))
	fail(err)
	fmt.Println("serving at", arg.Serve.Path)
	for {
		c, err := l.Accept()
		fail(err)
		go func() {
			defer func() { _ = c.Close() }()
			_, _ = fmt.Fprintln(c, arg.Name)
			_, _ = io.Copy(c, c)
		}()
	}
}

// open opens what was granted so that waiting for it keeps nobody else waiting.
func open(path string) *os.File {
	fd, err := syscall.Open(path, syscall.O_RDWR, 0)
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
