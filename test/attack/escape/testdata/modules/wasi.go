//go:build wasip1

package main

import (
	"fmt"
	"unsafe"
)

// The calls of WASI are made as they are: Go's own cleans paths and keeps a table of files.

//go:wasmimport wasi_snapshot_preview1 path_open
func pathOpen(dir int32, follow int32, path unsafe.Pointer, size uint32, oflags int32, rights, inherited uint64, flags int32, fd unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 path_filestat_get
func pathStat(dir int32, follow int32, path unsafe.Pointer, size uint32, stat unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 path_filestat_set_times
func pathTimes(dir int32, follow int32, path unsafe.Pointer, size uint32, atime, mtime uint64, flags uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_create_directory
func pathMkdir(dir int32, path unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_unlink_file
func pathUnlink(dir int32, path unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_remove_directory
func pathRmdir(dir int32, path unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_rename
func pathRename(dir int32, path unsafe.Pointer, size uint32, to int32, name unsafe.Pointer, length uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_link
func pathLink(dir int32, follow int32, path unsafe.Pointer, size uint32, to int32, name unsafe.Pointer, length uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_symlink
func pathSymlink(text unsafe.Pointer, length uint32, dir int32, path unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_readlink
func pathReadlink(dir int32, path unsafe.Pointer, size uint32, buf unsafe.Pointer, length uint32, used unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_prestat_get
func fdPrestat(fd int32, stat unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_prestat_dir_name
func fdPrestatName(fd int32, buf unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_fdstat_get
func fdStat(fd int32, stat unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_readdir
func fdReaddir(fd int32, buf unsafe.Pointer, size uint32, cookie uint64, used unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_read
func fdRead(fd int32, vectors unsafe.Pointer, n uint32, read unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_write
func fdWrite(fd int32, vectors unsafe.Pointer, n uint32, written unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_filestat_set_size
func fdSetSize(fd int32, size uint64) uint32

//go:wasmimport wasi_snapshot_preview1 fd_close
func fdClose(fd int32) uint32

//go:wasmimport wasi_snapshot_preview1 random_get
func randomGet(buf unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 clock_time_get
func clockTime(id uint32, precision uint64, at unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 environ_sizes_get
func environSizes(n, size unsafe.Pointer) uint32

// errno is an error of WASI.
type errno uint32

func (e errno) Error() string { return fmt.Sprintf("errno %d", uint32(e)) }

func of(e uint32) error {
	if e == 0 {
		return nil
	}
	return errno(e)
}

func ptr(s string) unsafe.Pointer { return unsafe.Pointer(unsafe.StringData(s)) }

// Flags of path_open, and rights by which wazero knows whether a file is to be written to.
const (
	creat, directory, trunc = 1, 2, 8
	appending               = 1
	reading, writing        = 1 << 1, 1 << 6
)

func open(dir int32, path string, oflags int32, rights uint64, flags int32) (int32, error) {
	var fd int32
	const follow = 1
	err := of(pathOpen(dir, follow, ptr(path), uint32(len(path)), oflags, rights, ^uint64(0), flags, unsafe.Pointer(&fd)))
	return fd, err
}

// vector is one buffer of fd_read and fd_write.
type vector struct {
	at   unsafe.Pointer
	size uint32
}

func read(fd int32) error {
	buf := make([]byte, 16)
	v, n := vector{unsafe.Pointer(&buf[0]), uint32(len(buf))}, uint32(0)
	return of(fdRead(fd, unsafe.Pointer(&v), 1, unsafe.Pointer(&n)))
}

func write(fd int32) error {
	text := []byte("written")
	v, n := vector{unsafe.Pointer(&text[0]), uint32(len(text))}, uint32(0)
	return of(fdWrite(fd, unsafe.Pointer(&v), 1, unsafe.Pointer(&n)))
}
