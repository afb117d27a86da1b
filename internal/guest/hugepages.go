package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/invalid"
)

// hugePages is the file system of an ephemeral storage of large pages.
const hugePages = "hugetlbfs"

// pagePool is the kernel's stock of large pages.
type pagePool struct {
	mu sync.Mutex // serializes changes of the number of pages
}

// mount reserves as many large pages as a storage is to have, and mounts the file
// system of them, until it is unmounted.
func (p *pagePool) mount(sysfs string, s Storage) (undo func() error, err error) {
	page, size, gid, err := hugeOptions(s.Options)
	if err != nil {
		return nil, err
	}
	on, err := makePlace(s.Target, 0o755)
	if err != nil {
		return nil, err
	}
	defer on.close()
	release, err := p.reserve(sysfs, page, size/page)
	if err != nil {
		return nil, errors.Join(err, removeEmpty(s.Target))
	}
	unmount, err := on.mount("nodev", hugePages, 0, fmt.Sprintf("pagesize=%d,size=%d", page, size))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s: %w", hugePages, err), release())
	}
	undo = func() error { return errors.Join(unmount(), release()) }
	if err := setGroup(s.Target, gid); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// hugeOptions reads pagesize=, size= and fsgid=.
func hugeOptions(options []string) (page, size uint64, gid int, err error) {
	gid = -1
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "pagesize":
			page, err = bytesOf(value)
		case "size":
			size, err = bytesOf(value)
		case "fsgid":
			gid, err = parseGID(value)
		default:
			err = invalid.Errorf("option %q: large pages have pagesize=, size= and fsgid=", o)
		}
		if err != nil {
			return 0, 0, -1, err
		}
	}
	if page == 0 || size < page {
		return 0, 0, -1, invalid.Errorf("large pages: pagesize= and a size= of one page at least are wanted")
	}
	return page, size, gid, nil
}

// bytesOf reads a size with or without one of the letters K, M and G, of 1024 each.
func bytesOf(s string) (uint64, error) {
	shift := 0
	number := s
	if i := strings.IndexAny(s, "KMGkmg"); i >= 0 {
		shift = map[byte]int{'k': 10, 'm': 20, 'g': 30}[s[i]|0x20]
		if rest := s[i+1:]; rest != "" && rest != "i" && rest != "B" && rest != "iB" {
			return 0, invalid.Errorf("size %q: a number with K, M or G is wanted", s)
		}
		number = s[:i]
	}
	n, err := strconv.ParseUint(number, 10, 64-30)
	if err != nil {
		return 0, invalid.Errorf("size %q: a number with K, M or G is wanted", s)
	}
	return n << shift, nil
}

// reserve has the kernel keep more large pages of a size; release gives them back.
func (p *pagePool) reserve(sysfs string, page, more uint64) (release func() error, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	file := filepath.Join(sysfs, "kernel/mm/hugepages", fmt.Sprintf("hugepages-%dkB", page>>10), "nr_hugepages")
	now, err := readNumber(file)
	if err != nil {
		return nil, fmt.Errorf("large pages of %d kB: %w", page>>10, err)
	}
	release = func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		has, err := readNumber(file)
		if err != nil {
			return err
		}
		return writeFile(file, strconv.FormatUint(has-min(has, more), 10))
	}
	if err := writeFile(file, strconv.FormatUint(now+more, 10)); err != nil {
		return nil, fmt.Errorf("large pages of %d kB: %w", page>>10, err)
	}
	got, err := readNumber(file)
	if err == nil && got < now+more {
		err = errors.Join(
			fmt.Errorf("the kernel has %d large pages of %d kB where %d are wanted: %w", got, page>>10, now+more, errdefs.ErrResourceExhausted),
			writeFile(file, strconv.FormatUint(now, 10)))
	}
	return release, err
}

func readNumber(file string) (uint64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}
