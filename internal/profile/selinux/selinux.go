// Package selinux chooses the SELinux labels of sandboxes, so that the containers of one cannot use the
// files of another.
//
// Two containers of the same type are separated by their levels: each sandbox has two categories that no
// other sandbox has. Start at Table.Take.
package selinux

import (
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/ocispec"
)

// categories is the number of categories that policies define: c0 to c1023.
const categories = 1024

// attempts bounds the search for a free level. There are 523,776 of them.
const attempts = 10_000

// fs is where the kernel's files of SELinux are.
const fs = "/sys/fs/selinux"

// Usable returns an error unless the kernel has SELinux on with a policy that knows the label.
func Usable(label string) error {
	if _, err := os.Stat(fs + "/enforce"); err != nil {
		return fmt.Errorf("this kernel has SELinux off: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	if err := os.WriteFile(fs+"/context", []byte(label), 0); err != nil {
		return fmt.Errorf("the loaded SELinux policy does not know the label %s; install container-selinux: %w: %w", label, err, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Check returns an error unless the kernel and its policy have the labels of containers.
func Check() error {
	process, files, err := ocispec.SELinux{Level: pair(1, 1)}.Labels()
	for _, l := range []string{process, files} {
		if err == nil {
			err = Usable(l)
		}
	}
	return err
}

// pair returns the level with category a and another one, the b-th of the others.
func pair(a, b int) string {
	if b >= a {
		b++
	}
	return fmt.Sprintf("s0:c%d,c%d", min(a, b), max(a, b))
}

// LevelOf returns the level of a label, "" when it has none.
func LevelOf(label string) string {
	parts := strings.SplitN(label, ":", 4)
	if len(parts) < 4 {
		return ""
	}
	return parts[3]
}
