package cri

import (
	"errors"
	"io/fs"
	"path"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
)

// newLogs are the logs that are not there yet.
func newLogs(sinks []core.Sink) (logs []core.Sink) {
	for _, s := range sinks {
		rel, ok := beneath.Rel(s.Below, s.Path)
		if _, err := beneath.Stat(s.Below, rel); ok && errors.Is(err, fs.ErrNotExist) {
			logs = append(logs, s)
		}
	}
	return logs
}

// removeEmpty removes the logs that a create has left which failed: kubelet tries
// it again under other names, and nobody would take them away.
func removeEmpty(logs []core.Sink) {
	for _, s := range logs {
		rel, ok := beneath.Rel(s.Below, path.Dir(s.Path))
		if !ok {
			continue
		}
		dir, err := beneath.Root(s.Below, rel)
		if err != nil {
			continue
		}
		name := path.Base(s.Path)
		if st, err := dir.Lstat(name); err == nil && st.Mode().IsRegular() && st.Size() == 0 {
			_ = dir.Remove(name)
		}
		_ = dir.Close()
	}
}
