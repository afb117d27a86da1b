package oci

import (
	"encoding/json"
	"io/fs"
	"os"
	"syscall"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
)

// A restarted agent does not query a program again, because that would take most of its start.

// answersFormat is increased when answers of the same program are interpreted
// differently.
const answersFormat = 1

// program identifies one version of a program's file.
type program struct {
	Format  int    `json:"format"`
	Path    string `json:"path"`
	Device  uint64 `json:"device"`
	Inode   uint64 `json:"inode"`
	Size    int64  `json:"size"`
	Changed int64  `json:"changed"` // ctime, nanoseconds
}

func identify(path string, st fs.FileInfo) program {
	p := program{Format: answersFormat, Path: path, Size: st.Size(), Changed: st.ModTime().UnixNano()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		p.Device, p.Inode, p.Changed = sys.Dev, sys.Ino, sys.Ctim.Nano()
	}
	return p
}

type answers struct {
	Program  program              `json:"program"`
	Features core.RuntimeFeatures `json:"features"`
}

// answerFile is beside the program's state directory, because the entries in that are containers.
func (r *Runtime) answerFile() string { return r.o.Root + ".features.json" }

// recall returns the stored answers of the program, if its file has not changed.
func recall(file string, id program) (core.RuntimeFeatures, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return core.RuntimeFeatures{}, false
	}
	var a answers
	if json.Unmarshal(b, &a) != nil || a.Program != id {
		return core.RuntimeFeatures{}, false
	}
	return a.Features, true
}

func remember(file string, id program, f core.RuntimeFeatures) error {
	b, err := json.Marshal(answers{id, f})
	if err != nil {
		return err
	}
	return atomicfile.Replace(file, b, 0o600)
}
