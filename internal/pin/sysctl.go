package pin

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// SysctlNamespace says which kind of namespace a sysctl belongs to. What the
// whole machine shares, and what is no name of a sysctl, is InvalidArgument.
func SysctlNamespace(key string) (specs.LinuxNamespaceType, error) {
	path, err := sysctlPath(key)
	if err != nil {
		return "", err
	}
	switch {
	case strings.HasPrefix(path, "net/"):
		return specs.NetworkNamespace, nil
	case strings.HasPrefix(path, "fs/mqueue/"):
		return specs.IPCNamespace, nil
	case path == "kernel/hostname", path == "kernel/domainname":
		return specs.UTSNamespace, nil
	}
	switch path {
	case "kernel/msgmax", "kernel/msgmnb", "kernel/msgmni", "kernel/sem", "kernel/shmall",
		"kernel/shmmax", "kernel/shmmni", "kernel/shm_rmid_forced",
		"kernel/auto_msgmni", "kernel/msg_next_id", "kernel/sem_next_id", "kernel/shm_next_id":
		return specs.IPCNamespace, nil
	}
	return "", fmt.Errorf("sysctl %s is shared by the whole machine: %w", key, errdefs.ErrInvalidArgument)
}

// sysctlPath turns a name into a path below /proc/sys. As in sysctl(8), the
// first separator met decides which one separates: net.ipv4.conf.eth0/1.mtu
// and net/ipv4/conf/eth0.1/mtu are the same.
func sysctlPath(key string) (string, error) {
	path := key
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '.' {
		path = strings.Map(func(r rune) rune {
			switch r {
			case '.':
				return '/'
			case '/':
				return '.'
			default:
				return r
			}
		}, key)
	}
	for _, part := range strings.Split(path, "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsRune(part, 0) {
			return "", fmt.Errorf("sysctl %q: not a name: %w", key, errdefs.ErrInvalidArgument)
		}
	}
	return path, nil
}

// setSysctl writes one value as the calling thread's namespaces see it.
func setSysctl(key, value string) error {
	path, err := sysctlPath(key)
	if err != nil {
		return err
	}
	f, err := os.OpenFile("/proc/sys/"+path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("set sysctl %s: this kernel has none: %w: %w", key, err, errdefs.ErrInvalidArgument)
	default:
		return fmt.Errorf("set sysctl %s to %q: %w: %w", key, value, err, errdefs.ErrInvalidArgument)
	}
}
