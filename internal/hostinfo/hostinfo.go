// Package hostinfo describes the machine that the agent runs on, and measures directories on its disks, for the control API and
// the faces. It knows no objects. Start at Read.
package hostinfo

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is the machine. Values that cannot be read are zero.
type Host struct {
	ID      string // a UUID that stays the same, and is not /etc/machine-id, which is confidential
	Name    string
	System  string // the operating system's name for people, such as Debian GNU/Linux 12 (bookworm)
	Version string // the operating system's version, such as 12
	Kernel  string
	Machine string // the processor as uname names it: x86_64
	CPUs    int
	Memory  uint64 // bytes
}

// Read reads the description of the machine.
func Read() Host { return read("/etc/os-release", "/etc/machine-id") }

// Kernel returns the kernel's version.
func Kernel() string {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return ""
	}
	return unix.ByteSliceToString(uts.Release[:])
}

// Revision returns the version of the source that the running program was built from, "" if it is unknown.
func Revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, kv := range info.Settings {
			if kv.Key == "vcs.revision" {
				return kv.Value
			}
		}
	}
	return ""
}

// Memory returns the size of the machine's memory in bytes.
func Memory() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return info.Totalram * uint64(info.Unit)
}

func read(release, machine string) Host {
	h := Host{Kernel: Kernel(), CPUs: runtime.NumCPU(), Memory: Memory()}
	h.Name, _ = os.Hostname()
	var uts unix.Utsname
	if err := unix.Uname(&uts); err == nil {
		h.Machine = unix.ByteSliceToString(uts.Machine[:])
	}
	values := osRelease(release)
	h.System, h.Version = values["PRETTY_NAME"], values["VERSION_ID"]
	secret, err := os.ReadFile(machine)
	if err != nil {
		secret = []byte(h.Name)
	}
	h.ID = uuid(bytes.TrimSpace(secret))
	return h
}

// uuid returns a UUID for a secret that does not reveal it: version 8 of RFC 9562.
func uuid(secret []byte) string {
	b := sha256.Sum256(append([]byte("longshore "), secret...))
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// osRelease returns the values of a file in the form of /etc/os-release, none if it cannot be read.
func osRelease(path string) map[string]string {
	values := map[string]string{}
	raw, err := os.ReadFile(path)
	if err != nil {
		return values
	}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		name, text, ok := strings.Cut(lines.Text(), "=")
		if !ok {
			continue
		}
		if plain, err := strconv.Unquote(text); err == nil {
			values[name] = plain
		} else {
			values[name] = strings.Trim(text, `'"`)
		}
	}
	return values
}
