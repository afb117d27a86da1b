package cri

import (
	"errors"
	"io/fs"
	"os"

	"github.com/longshore/longshore/internal/core"
)

// newLogs are the logs that are not there yet.
func newLogs(sinks []core.Sink) (paths []string) {
	for _, s := range sinks {
		if _, err := os.Lstat(s.Path); errors.Is(err, fs.ErrNotExist) {
			paths = append(paths, s.Path)
		}
	}
	return paths
}

// removeEmpty removes the logs that a create has left which failed: kubelet tries
// it again under other names, and nobody would take them away.
func removeEmpty(paths []string) {
	for _, path := range paths {
		if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() && st.Size() == 0 {
			_ = os.Remove(path)
		}
	}
}
