//go:build wasip1

// Command modules is a WebAssembly program that tries to get at what it was not given. It makes each attempt once and prints a line for
// each: its name, then "reached" or "refused", then what it saw.
//
// Run as "modules control" it has been given all that the attempts are after; run with the name of a bomb it takes as much of something as
// it gets.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"
)

// attempt is one try to get at something. A nil error means that it was reached.
type attempt struct {
	name string
	try  func(*world) error
}

// world is what the program has. The directories of a control are below one that was given.
type world struct {
	root       int32 // the first preopen
	data, read place
	preopens   map[string]int32
}

// place is a directory: a prefix of paths below a descriptor.
type place struct {
	dir    int32
	prefix string
}

func main() {
	mode := ""
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	list := all()
	w := &world{preopens: map[string]int32{}}
	for fd := int32(3); ; fd++ {
		var stat [2]uint32
		if fdPrestat(fd, unsafe.Pointer(&stat)) != 0 {
			break
		}
		buf := make([]byte, stat[1])
		if fdPrestatName(fd, unsafe.Pointer(unsafe.SliceData(buf)), uint32(len(buf))) == 0 {
			w.preopens[string(buf)] = fd
		}
	}
	w.root = w.preopens["/"]
	if mode == "control" {
		w.data, w.read = place{w.preopens["/all"], "data/"}, place{w.preopens["/all"], "read/"}
		for range 16 { // so that there are descriptors of these numbers
			if _, err := open(w.root, "fd/9", 0, reading, 0); err != nil {
				fmt.Println("cannot open what is given:", err)
				os.Exit(1)
			}
		}
	} else {
		w.data, w.read = place{w.preopens["/data"], ""}, place{w.preopens["/read"], ""}
	}
	if err := w.check(); err != nil {
		fmt.Println("what was given is not there:", err, w.preopens)
		os.Exit(1)
	}
	if bomb, ok := bombs[mode]; ok {
		fmt.Println("reached", bomb(w))
		return
	}
	for _, a := range list {
		if err := a.try(w); err != nil {
			fmt.Printf("%s refused %v\n", a.name, err)
		} else {
			fmt.Printf("%s reached\n", a.name)
		}
	}
	fmt.Println("done", len(list))
}

// bombs take what is bounded, and return how much they got.
var bombs = map[string]func(*world) int{
	"memory": func(*world) int {
		const most = 256
		var all [][]byte
		for range most {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			all = append(all, b)
		}
		return len(all)
	},
	"descriptors": func(w *world) (n int) {
		const most = 20_000
		for n < most {
			if _, err := open(w.data.dir, w.data.prefix+"kept", 0, reading, 0); err != nil {
				break
			}
			n++
		}
		return n
	},
}

// check proves that the program can use what it is given: otherwise a refusal would prove nothing.
func (w *world) check() error {
	fd, err := open(w.data.dir, w.data.prefix+"kept", creat, writing, 0)
	if err == nil {
		if err = write(fd); err == nil {
			err = of(fdClose(fd))
		}
	}
	if err == nil {
		fd, err = open(w.read.dir, w.read.prefix+"file", 0, reading, 0)
	}
	if err == nil {
		if err = read(fd); err == nil {
			err = of(fdClose(fd))
		}
	}
	return err
}

// openIn opens a path below a place and, with rights to write, writes to it.
func (p place) openIn(path string, oflags int32, rights uint64, flags int32) error {
	fd, err := open(p.dir, p.prefix+path, oflags, rights, flags)
	if err != nil {
		return err
	}
	defer fdClose(fd)
	if rights&writing != 0 && oflags&directory == 0 {
		return write(fd)
	}
	if oflags&directory == 0 {
		return read(fd)
	}
	var used uint32
	buf := make([]byte, 512)
	return of(fdReaddir(fd, unsafe.Pointer(&buf[0]), uint32(len(buf)), 0, unsafe.Pointer(&used)))
}

// calls are the calls with one path, each of which is tried below several places.
func (p place) calls() map[string]func(path string) error {
	at := func(path string) (int32, unsafe.Pointer, uint32) {
		path = p.prefix + path
		return p.dir, ptr(path), uint32(len(path))
	}
	return map[string]func(string) error{
		"read":   func(path string) error { return p.openIn(path, 0, reading, 0) },
		"write":  func(path string) error { return p.openIn(path, 0, writing, 0) },
		"create": func(path string) error { return p.openIn(path, creat, writing, 0) },
		"empty":  func(path string) error { return p.openIn(path, trunc, writing, 0) },
		"append": func(path string) error { return p.openIn(path, 0, writing, appending) },
		"list":   func(path string) error { return p.openIn(path, directory, reading, 0) },
		"size": func(path string) error {
			fd, err := open(p.dir, p.prefix+path, 0, reading|writing, 0)
			if err != nil {
				return err
			}
			defer fdClose(fd)
			return of(fdSetSize(fd, 1))
		},
		"stat": func(path string) error {
			var buf [64]byte
			d, s, n := at(path)
			return of(pathStat(d, 1, s, n, unsafe.Pointer(&buf)))
		},
		"times": func(path string) error {
			d, s, n := at(path)
			return of(pathTimes(d, 1, s, n, 1, 1, 1|4))
		},
		"mkdir": func(path string) error {
			d, s, n := at(path)
			return of(pathMkdir(d, s, n))
		},
		"unlink": func(path string) error {
			d, s, n := at(path)
			return of(pathUnlink(d, s, n))
		},
		"rmdir": func(path string) error {
			d, s, n := at(path)
			return of(pathRmdir(d, s, n))
		},
		"readlink": func(path string) error {
			var buf [64]byte
			var used uint32
			d, s, n := at(path)
			return of(pathReadlink(d, s, n, unsafe.Pointer(&buf), uint32(len(buf)), unsafe.Pointer(&used)))
		},
		"symlink": func(path string) error {
			const text = "file"
			d, s, n := at(path)
			return of(pathSymlink(ptr(text), uint32(len(text)), d, s, n))
		},
	}
}

func (p place) rename(from, to string) error {
	from, to = p.prefix+from, p.prefix+to
	return of(pathRename(p.dir, ptr(from), uint32(len(from)), p.dir, ptr(to), uint32(len(to))))
}

func (p place) link(from, to string) error {
	from, to = p.prefix+from, p.prefix+to
	return of(pathLink(p.dir, 0, ptr(from), uint32(len(from)), p.dir, ptr(to), uint32(len(to))))
}

// all returns every attempt, in the order in which they are made.
func all() (list []attempt) {
	add := func(name string, try func(*world) error) { list = append(list, attempt{name, try}) }
	// one adds a call with a path for each pair of these.
	one := func(class string, where func(*world) place, pairs ...string) {
		for _, pair := range pairs {
			call, path, _ := strings.Cut(pair, " ")
			add(class+"/"+call+" "+path, func(w *world) error { return where(w).calls()[call](path) })
		}
	}
	data, readable := func(w *world) place { return w.data }, func(w *world) place { return w.read }
	// A mount of the request that the document does not name.
	etc := func(w *world) place {
		if fd, ok := w.preopens["/other"]; ok {
			return place{dir: fd}
		}
		return place{w.root, "other/"}
	}
	one("paths", etc, "read secret", "write written", "create made", "empty emptied", "append appended", "list .", "size sized", "stat secret", "times secret", "mkdir directory",
		"unlink removed", "rmdir removed-dir", "readlink link", "symlink made-link")
	one("parents", data, "read ../other/secret", "read sub/../../other/secret", "read ./.././other/secret", "write ../other/written", "create ../other/made2", "empty ../other/emptied",
		"append ../other/appended", "list ..", "list ../other", "size ../other/sized", "stat ../other/secret", "times ../other/secret", "mkdir ../other/directory2", "unlink ../other/removed2", "rmdir ../other/removed-dir2",
		"readlink ../other/link", "symlink ../other/made-link2")
	one("links", data, "read link", "read directory-link/secret", "read twice", "write link-written", "create dangling", "empty link-emptied", "append link-appended", "list directory-link",
		"size link-sized", "stat link", "times link", "mkdir directory-link/directory3", "unlink directory-link/removed3", "readlink directory-link/link")
	add("links/made, then read", func(w *world) error {
		const text, name = "../../other/secret", "sub/made"
		path := w.data.prefix + name
		if err := of(pathSymlink(ptr(text), uint32(len(text)), w.data.dir, ptr(path), uint32(len(path)))); err != nil {
			return err
		}
		return w.data.openIn(name, 0, reading, 0)
	})
	add("parents/rename from", func(w *world) error { return w.data.rename("../other/moved", "moved") })
	add("parents/rename to", func(w *world) error { return w.data.rename("sub/x", "../other/moved-to") })
	add("parents/link from", func(w *world) error { return w.data.link("../other/secret", "hard") })
	add("parents/link to", func(w *world) error { return w.data.link("kept", "../other/hard") })
	one("rights", readable, "write file", "create made", "empty emptied", "append file", "size sized", "times file", "mkdir directory", "unlink removed", "rmdir removed-dir", "symlink made-link")
	add("rights/rename", func(w *world) error { return w.read.rename("moved", "renamed") })
	add("rights/link", func(w *world) error { return w.read.link("file", "hard") })
	// The module and what was compiled of it are among the first of these.
	for n := 7; n <= 12; n++ {
		add(fmt.Sprintf("descriptors/fd %d", n), func(w *world) error {
			fd, err := open(w.root, fmt.Sprintf("fd/%d", n), 0, reading, 0)
			if err == nil {
				err = of(fdClose(fd))
			}
			return err
		})
	}
	for _, n := range []int32{8, 11, 15} {
		add(fmt.Sprintf("descriptors/number %d", n), func(*world) error {
			var stat [24]byte
			if err := of(fdStat(n, unsafe.Pointer(&stat))); err != nil {
				return err
			}
			return read(n)
		})
	}
	add("ambient/random", func(*world) error {
		var buf [8]byte
		return of(randomGet(unsafe.Pointer(&buf), uint32(len(buf))))
	})
	for id, name := range []string{"time", "monotonic time"} {
		add("ambient/"+name, func(*world) error {
			const year2024 = 1_704_067_200_000_000_000
			var first, now uint64
			if err := of(clockTime(uint32(id), 1, unsafe.Pointer(&first))); err != nil {
				return err
			}
			if id == 0 && first < year2024 {
				return fmt.Errorf("it is %d", first)
			}
			// What is not given advances by a millisecond with each call.
			if err := of(clockTime(uint32(id), 1, unsafe.Pointer(&now))); err != nil {
				return err
			}
			if (now-first)%1_000_000 == 0 && (now-first)/1_000_000 < 10 && first%1_000_000 == 0 {
				return fmt.Errorf("it goes from %d to %d", first, now)
			}
			return nil
		})
	}
	add("ambient/environment", func(*world) error {
		var n, size uint32
		if err := of(environSizes(unsafe.Pointer(&n), unsafe.Pointer(&size))); err != nil {
			return err
		}
		if n == 0 {
			return errno(0)
		}
		return nil
	})
	slices.SortStableFunc(list, func(a, b attempt) int {
		class := func(n string) string { c, _, _ := strings.Cut(n, "/"); return c }
		return strings.Compare(class(a.name), class(b.name))
	})
	return list
}
