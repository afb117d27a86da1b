// Command board is a program on the board that is a server, ends that, and is one again, without end. It writes down each
// change of how that went.
package main

import (
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

func main() {
	var arg struct{ Serve, Data descriptor }
	err := json.NewDecoder(os.NewFile(3, "argdata")).Decode(&arg)
	if err == nil {
		err = serve(arg.Serve.FD, int(arg.Data.FD))
	}
	fmt.Println("ended:", err)
	os.Exit(3)
}

func serve(handle uintptr, data int) error {
	h, err := program.Open(handle)
	if err != nil {
		return err
	}
	last := ""
	for range time.NewTicker(20 * time.Millisecond).C {
		now := "serves"
		s, err := h.Serve(context.Background(), nil)
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			now = err.Error()
		}
		if now == last {
			continue
		}
		if err := write(data, now); err != nil {
			return err
		}
		last = now
	}
	return nil
}

// write replaces the file state in a directory. The program has no root and no paths.
func write(dir int, text string) error {
	fd, err := unix.Openat(dir, "part", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "part")
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return unix.Renameat(dir, "part", dir, "state")
}
