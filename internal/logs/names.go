package logs

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// names returns the paths of a sink's files, oldest first; the last is the current one.
func names(sink core.Sink) []string {
	if sink.Numbered {
		return numbered(sink)
	}
	var list []string
	for i := max(sink.MaxFiles, 1) - 1; i > 0; i-- {
		list = append(list, sink.Path+"."+strconv.Itoa(i))
	}
	return append(list, sink.Path)
}

// current returns the path of the file that is being written.
func current(sink core.Sink) string {
	if !sink.Numbered {
		return sink.Path
	}
	list := numbered(sink)
	return list[len(list)-1]
}

// numbered returns the files beside the sink's path, which ends in .N, that have the same name
// and this number or a higher one.
func numbered(sink core.Sink) []string {
	path := sink.Path
	ext := filepath.Ext(path)
	base := strings.TrimSuffix(path, ext)
	first, err := strconv.Atoi(strings.TrimPrefix(ext, "."))
	if err != nil {
		return []string{path}
	}
	found := []int{}
	var entries []string
	if dir, err := openDir(sink); err == nil {
		entries, _ = dir.Readdirnames(-1)
		_ = dir.Close()
	}
	for _, e := range entries {
		text, ok := strings.CutPrefix(e, filepath.Base(base)+".")
		if n, err := strconv.Atoi(text); ok && err == nil && n >= first {
			found = append(found, n)
		}
	}
	if len(found) == 0 {
		return []string{path}
	}
	slices.Sort(found)
	list := make([]string, len(found))
	for i, n := range found {
		list[i] = base + "." + strconv.Itoa(n)
	}
	return list
}
