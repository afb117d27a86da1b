//go:build amd64

package main

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// bombs take so many of something, and return how many they got.
var bombs = map[string]func() int{
	"threads": func() int {
		const all = 2000
		started := make(chan struct{})
		for i := range all {
			go func() {
				runtime.LockOSThread()
				started <- struct{}{}
				select {}
			}()
			<-started
			if i%100 == 99 {
				fmt.Println("threads", i+1) // the program dies of the first one that it does not get
			}
		}
		return all
	},
	"memory": func() int { // in MiB
		const all = 256
		for i := range all {
			b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err != nil {
				return i
			}
			for at := 0; at < len(b); at += 4096 {
				b[at] = 1
			}
		}
		return all
	},
	"descriptors": func() int {
		const all = 10_000
		for i := range all {
			if _, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 0); err != nil {
				return i
			}
		}
		return all
	},
}
