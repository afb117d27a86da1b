package sleep_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/sleep/pages"
)

// TestMain lets the test binary be the program that sleeps, the page server, and programs that sleep.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case pages.ArgSleep, pages.ArgServe:
			os.Exit(pages.Main(os.Args[1:]))
		case workArg:
			work()
			os.Exit(0)
		case childArg:
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// The first arguments of the programs that sleep.
const (
	workArg  = "work"
	childArg = "child"
)

// workSize is how much memory a work process has, half of it from the heap of Go.
const workSize = 48 << 20

// work is a program with memory, threads and mappings, that answers requests on its standard input.
func work() {
	r := rand.New(rand.NewPCG(1, uint64(os.Getpid())))
	heap := make([][]byte, workSize/2>>16)
	for i := range heap {
		heap[i] = make([]byte, 1<<16)
		fill(r, heap[i])
	}
	mapped, err := unix.Mmap(-1, 0, workSize/2, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	fill(r, mapped[:len(mapped)/2]) // the rest is empty
	ticks := make(chan uint64, 1)
	ticks <- 0
	go func() {
		for range time.NewTicker(time.Millisecond).C { // it interrupts system calls all the time
			n := <-ticks
			ticks <- n + 1
		}
	}()
	sum := func() string {
		h := sha256.New()
		for _, b := range heap {
			h.Write(b)
		}
		h.Write(mapped)
		return fmt.Sprintf("%x", h.Sum(nil))
	}
	fmt.Println(sum())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		switch word, _, _ := strings.Cut(in.Text(), " "); word {
		case "sum":
			fmt.Println(sum())
		case "touch": // one page in the middle
			fmt.Println(mapped[len(mapped)/4])
		case "drop": // content that the program gives up must not come back
			if err := unix.Madvise(mapped[1<<20:2<<20], unix.MADV_DONTNEED); err != nil {
				panic(err)
			}
			for i, b := range mapped[1<<20 : 2<<20] {
				if b != 0 {
					fmt.Println("page", i>>12, "has come back")
					os.Exit(1)
				}
			}
			fill(r, mapped[1<<20:2<<20])
			fmt.Println(sum())
		case "move": // mappings that move take their pages with them
			moved, err := unix.Mremap(mapped, 2*len(mapped), unix.MREMAP_MAYMOVE)
			if err != nil {
				panic(err)
			}
			mapped = moved[:len(mapped)]
			fmt.Println(sum())
		case "fork":
			out, err := exec.Command("/proc/self/exe", childArg).CombinedOutput()
			fmt.Println(len(out), err)
		case "new": // memory that was not there before
			b := make([]byte, 8<<20)
			for i := range b {
				if b[i] != 0 {
					fmt.Println("new memory is not empty")
					os.Exit(1)
				}
			}
			fill(r, b)
			heap = append(heap, b)
			fmt.Println(sum())
		}
	}
}

func fill(r *rand.Rand, b []byte) {
	for len(b) > 0 {
		binary.LittleEndian.PutUint64(b, r.Uint64()>>(r.Uint64()%60)) // it compresses a little
		b = b[8:]
	}
}
