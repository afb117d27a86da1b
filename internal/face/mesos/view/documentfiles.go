package view

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
)

// pathParam is the query parameter path, which is required.
func pathParam(r *http.Request) (string, error) {
	p := r.URL.Query().Get("path")
	if p == "" {
		return "", badRequest("Expecting 'path=value' in query.\n")
	}
	return p, nil
}

func browseDocument(h Documents, r *http.Request) (any, error) {
	p, err := pathParam(r)
	if err != nil {
		return nil, err
	}
	resp, err := h.Do(r.Context(), &mesosagent.Call{Type: mesosagent.Call_LIST_FILES.Enum(), ListFiles: &mesosagent.Call_ListFiles{Path: &p}})
	all := []jsonObject{}
	for _, f := range resp.GetListFiles().GetFileInfos() {
		all = append(all, jsonObject{
			"path": f.GetPath(), "nlink": f.GetNlink(), "size": f.GetSize(), "mtime": f.GetMtime().GetNanoseconds() / 1e9, "mode": modeString(f.GetMode()),
			"uid": f.GetUid(), "gid": f.GetGid(),
		})
	}
	return all, err
}

// modeString formats a file mode as ls does.
func modeString(m uint32) string {
	kind := byte('-')
	switch m & unix.S_IFMT {
	case unix.S_IFDIR:
		kind = 'd'
	case unix.S_IFCHR:
		kind = 'c'
	case unix.S_IFBLK:
		kind = 'b'
	case unix.S_IFIFO:
		kind = 'p'
	case unix.S_IFLNK:
		kind = 'l'
	case unix.S_IFSOCK:
		kind = 's'
	}
	text := []byte{kind}
	for bit := 8; bit >= 0; bit-- {
		c := byte('-')
		if m&(1<<bit) != 0 {
			c = "xwr"[bit%3]
		}
		text = append(text, c)
	}
	return string(text)
}

// readDocument returns a part of a file as text. Without an offset it returns the
// file's size as the offset, and no data. A length of -1 means no length.
func readDocument(h Documents, r *http.Request) (any, error) {
	p, err := pathParam(r)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	offset, err := signedParam(q.Get("offset"), "offset")
	if err != nil {
		return nil, err
	}
	length, err := signedParam(q.Get("length"), "length")
	if err != nil {
		return nil, err
	}
	from, most := uint64(max(offset, 0)), uint64(max(length, 0))
	call := &mesosagent.Call_ReadFile{Path: &p, Offset: &from}
	if offset < 0 || length >= 0 {
		call.Length = &most
	}
	if offset < 0 {
		most = 0
	}
	resp, err := h.Do(r.Context(), &mesosagent.Call{Type: mesosagent.Call_READ_FILE.Enum(), ReadFile: call})
	if offset < 0 {
		offset = int64(resp.GetReadFile().GetSize())
	}
	return jsonObject{"offset": offset, "data": string(resp.GetReadFile().GetData())}, err
}

// signedParam parses an offset or length; -1 if it is not set.
func signedParam(text, name string) (int64, error) {
	if text == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, badRequest(fmt.Sprintf("Failed to parse %s: %v.\n", name, errors.Unwrap(err)))
	}
	if n < -1 {
		return 0, badRequest(fmt.Sprintf("Negative %s provided: %d.\n", name, n))
	}
	return n, nil
}

// debugDocument lists the paths of readable files, with their paths on the host.
func debugDocument(h Documents, r *http.Request) (any, error) {
	all, err := h.flags(r.Context())
	dir := path.Join(all["work_dir"], sandbox.Nested)
	return map[string]string{dir: dir}, err
}

// downloadFile sends a whole file, with the size that it has at the beginning.
func downloadFile(h Documents, w http.ResponseWriter, r *http.Request) error {
	p, err := pathParam(r)
	if err != nil {
		return err
	}
	size, data, err := h.readPart(r.Context(), p, 0)
	if derr := (*api.Error)(nil); errors.As(err, &derr) && strings.HasPrefix(derr.Text, "Cannot read a directory") {
		return badRequest("Cannot download a directory.\n")
	}
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(p)}))
	w.Header().Set("Content-Length", strconv.FormatUint(size, 10))
	for at := uint64(0); ; {
		data = data[:min(uint64(len(data)), size-at)]
		if _, err := w.Write(data); err != nil {
			return nil //nolint:nilerr // the client is gone
		}
		if at += uint64(len(data)); at == size || r.Method == http.MethodHead {
			return nil
		}
		if _, data, err = h.readPart(r.Context(), p, at); err != nil || len(data) == 0 {
			panic(http.ErrAbortHandler) // the file became shorter: break the connection, so that the client notices
		}
	}
}

// readPart reads a part of a file.
func (h Documents) readPart(ctx context.Context, p string, at uint64) (size uint64, data []byte, err error) {
	resp, err := h.Do(ctx, &mesosagent.Call{Type: mesosagent.Call_READ_FILE.Enum(), ReadFile: &mesosagent.Call_ReadFile{Path: &p, Offset: &at}})
	return resp.GetReadFile().GetSize(), resp.GetReadFile().GetData(), err
}
