// Package sleeptest has a program for tests. The program has several kinds of memory, threads, timers and a server,
// and checks the content of its memory. Start at Main.
package sleeptest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The first arguments of the program. WorkArg is followed by the address of its server, the MiB of its memory, and
// modes such as OwnFaults.
const (
	WorkArg  = "work"
	childArg = "work-child"
)

// Main is the program. It returns false when the arguments are not its own.
func Main(args []string) bool {
	if len(args) > 1 && args[1] == childArg {
		return true
	}
	if len(args) < 4 || args[1] != WorkArg {
		return false
	}
	mib, err := strconv.Atoi(args[3])
	var extra []func() []byte
	for _, mode := range args[4:] {
		var content func() []byte
		switch {
		case err != nil:
		case mode == Files:
			content, err = sharesFiles()
		default:
			var mem []byte
			mem, err = fight(mode)
			content = func() []byte { return mem }
		}
		extra = append(extra, content)
	}
	if err == nil {
		err = serve(args[2], mib, extra)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
	return true
}

// work is the memory of the program.
type work struct {
	mu     sync.Mutex      // guards random, heap, mapped
	extra  []func() []byte // return the content of the modes
	random *rand.Rand
	heap   [][]byte
	mapped []byte
}

// serve allocates the memory and answers requests.
func serve(addr string, mib int, extra []func() []byte) error {
	w := &work{extra: extra, random: rand.New(rand.NewPCG(1, uint64(os.Getpid())))}
	if err := w.allocate(mib << 19); err != nil {
		return err
	}
	for range 4 {
		go func() {
			for range time.NewTicker(time.Millisecond).C { // it interrupts system calls all the time
				w.mu.Lock()
				_ = w.heap[0][0]
				w.mu.Unlock()
			}
		}()
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(r http.ResponseWriter, req *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, err := io.WriteString(r, w.do(strings.TrimPrefix(req.URL.Path, "/"))); err != nil {
			return
		}
	})}
	return s.Serve(l)
}

// allocate gives the program that many bytes of two kinds of memory.
func (w *work) allocate(half int) (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range half >> 16 {
		w.heap = append(w.heap, w.fill(make([]byte, 1<<16)))
	}
	if w.mapped, err = unix.Mmap(-1, 0, half, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		return err
	}
	w.fill(w.mapped[:half/2]) // the rest is empty
	return nil
}

// fill fills memory. Preconditions: mu is held.
func (w *work) fill(b []byte) []byte {
	for p := b; len(p) > 0; p = p[8:] {
		binary.LittleEndian.PutUint64(p, w.random.Uint64()>>(w.random.Uint64()%60)) // it compresses a little
	}
	return b
}

// sum returns a digest of the memory. Preconditions: mu is held.
func (w *work) sum() string {
	h := sha256.New()
	for _, b := range w.heap {
		h.Write(b)
	}
	h.Write(w.mapped)
	for _, content := range w.extra {
		h.Write(content())
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// The requests. The answer of those that change the memory is the sum afterwards; all others leave it.
const (
	Sum   = "sum"   // the memory's SHA-256
	One   = "one"   // a byte of the heap
	Touch = "touch" // a page in the middle
	Drop  = "drop"  // discards pages
	Move  = "move"  // moves a mapping
	Fork  = "fork"  // executes a program
	New   = "new"   // allocates memory
	Dirty = "dirty" // changes a part of the memory
)

// do answers a request. Preconditions: mu is held.
func (w *work) do(request string) string {
	switch request {
	case Sum:
		return w.sum()
	case One:
		return strconv.Itoa(int(w.heap[len(w.heap)/2][0]))
	case Touch:
		return strconv.Itoa(int(w.mapped[len(w.mapped)/4]))
	case Drop:
		part := w.mapped[1<<20 : 2<<20]
		if err := unix.Madvise(part, unix.MADV_DONTNEED); err != nil {
			return err.Error()
		}
		for i, b := range part {
			if b != 0 {
				return fmt.Sprintf("page %d has come back", i>>12)
			}
		}
		w.fill(part)
	case Move:
		moved, err := unix.Mremap(w.mapped, 2*len(w.mapped), unix.MREMAP_MAYMOVE)
		if err != nil {
			return err.Error()
		}
		if w.mapped, err = unix.Mremap(moved, len(moved)/2, unix.MREMAP_MAYMOVE); err != nil {
			return err.Error()
		}
	case Fork:
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if out, err := exec.CommandContext(ctx, "/proc/self/exe", childArg).CombinedOutput(); err != nil {
			return fmt.Sprintf("%s: %v", out, err)
		}
	case New:
		b := make([]byte, 8<<20)
		for i := range b {
			if b[i] != 0 {
				return "new memory is not empty"
			}
		}
		w.heap = append(w.heap, w.fill(b))
	case Dirty:
		for i := 0; i < len(w.heap); i += 7 {
			w.fill(w.heap[i][:1<<12])
		}
	default:
		return "no request"
	}
	return w.sum()
}

// Ask makes a request of the program at an address and returns its answer.
func Ask(ctx context.Context, addr, request string) (_ string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/"+request, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Close = true
	// The connection ends before Ask does: the packet of its end would wake a program that has fallen asleep meanwhile.
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if err := req.Write(conn); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}
