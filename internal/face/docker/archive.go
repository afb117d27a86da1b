package docker

import (
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/decompress"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/inroot"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo"
	"github.com/longshore/longshore/internal/treecopy"
)

// files has the operations on the files of a container.
type files struct{ f *Face }

// pathStat describes a file of a container in a header.
type pathStat struct {
	Name       string      `json:"name"`
	Size       int64       `json:"size"`
	Mode       fs.FileMode `json:"mode"`
	Mtime      time.Time   `json:"mtime"`
	LinkTarget string      `json:"linkTarget"`
}

const pathStatHeader = "X-Docker-Container-Path-Stat"

// in finds the container of a request and its root.
func (a files) in(r *dockerhttp.Request) (inroot.Container, error) {
	ctx := r.Context()
	c, err := a.f.find(ctx, r.Vars["id"])
	if err != nil {
		return inroot.Container{}, err
	}
	sb, err := a.f.own.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return inroot.Container{}, err
	}
	sb = sb.Of(&c.Config)
	return inroot.Container{Container: c, IDs: treecopy.IDs{UIDs: sb.Config.UIDs, GIDs: sb.Config.GIDs}, Namespaces: a.f.o.Namespaces}, nil
}

// asked returns the path of a request.
func (a files) asked(r *dockerhttp.Request) (string, error) {
	p := r.Get("path")
	if p == "" {
		return "", invalid.Plainf("bad parameter: pathcannot be empty")
	}
	if !path.IsAbs(p) {
		p = "/" + p
	}
	return p, nil
}

// missing gives the error of a path dockerd's words.
func missing(err error, p string, r *dockerhttp.Request) error {
	if errdefs.IsNotFound(err) {
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("Could not find the file %s in container %s", p, r.Vars["id"]))
	}
	return err
}

// stat describes the file at the path, and sets the header with it.
func (a files) stat(w http.ResponseWriter, root *os.File, p string) error {
	info, link, err := treecopy.Stat(root, p, false)
	if err != nil {
		return err
	}
	name := path.Base(path.Clean("/" + p))
	if strings.HasSuffix(p, "/.") {
		name = "."
	}
	doc, err := json.Marshal(pathStat{name, info.Size(), info.Mode(), info.ModTime(), link})
	if err != nil {
		return err
	}
	w.Header().Set(pathStatHeader, base64.StdEncoding.EncodeToString(doc))
	return nil
}

func (a files) head(w http.ResponseWriter, r *dockerhttp.Request) error {
	p, err := a.asked(r)
	if err != nil {
		return err
	}
	in, err := a.in(r)
	if err != nil {
		return err
	}
	if err := in.Run(r.Context(), func(root *os.File) error { return a.stat(w, root, p) }); err != nil {
		return missing(err, p, r)
	}
	return dockerhttp.Reply(w, http.StatusOK, nil)
}

// get sends the file or the directory at the path as a tar. The names in it begin with the last part of the path.
func (a files) get(w http.ResponseWriter, r *dockerhttp.Request) error {
	p, err := a.asked(r)
	if err != nil {
		return err
	}
	in, err := a.in(r)
	if err != nil {
		return err
	}
	began := false
	err = in.Run(r.Context(), func(root *os.File) error {
		if err := a.stat(w, root, p); err != nil {
			return err
		}
		src, err := treecopy.Look(root, p, false)
		if err != nil {
			return err
		}
		as := src.Name
		if strings.HasSuffix(p, "/.") {
			as = "."
		}
		began = true
		return sendTar(w, r, func(to io.Writer) error { return treecopy.Pack(to, root, p, as, false, in.IDs) })
	})
	switch {
	case err != nil && began:
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	case err != nil:
		return missing(err, p, r)
	}
	a.f.publish(in.Container, "archive-path", nil)
	return nil
}

// sendTar answers with a tar, compressed if the client accepts that.
func sendTar(w http.ResponseWriter, r *dockerhttp.Request, pack func(io.Writer) error) error {
	w.Header().Set("Content-Type", "application/x-tar")
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.WriteHeader(http.StatusOK)
		return pack(w)
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.WriteHeader(http.StatusOK)
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if err := pack(z); err != nil {
		return err
	}
	return z.Close()
}

// put unpacks a tar in the directory at the path. Owners are those of the tar.
func (a files) put(w http.ResponseWriter, r *dockerhttp.Request) error {
	p, err := a.asked(r)
	if err != nil {
		return err
	}
	in, err := a.in(r)
	if err != nil {
		return err
	}
	req, err := asked(in.Container)
	if err != nil {
		return err
	}
	if err := writable(in.Container, req.HostConfig.ReadonlyRootfs, p); err != nil {
		return err
	}
	err = in.Run(r.Context(), func(root *os.File) error {
		to, err := treecopy.Directory(root, p)
		if errdefs.IsInvalidArgument(err) {
			return invalid.Plainf("extraction point is not a directory")
		}
		if err != nil {
			return err
		}
		plain, err := decompress.Reader(r.Body)
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		defer func() { _ = plain.Close() }()
		return treecopy.Unpack(plain, root, to, treecopy.Theirs, in.IDs)
	})
	if err != nil {
		return missing(err, p, r)
	}
	a.f.publish(in.Container, "extract-to-dir", nil)
	return dockerhttp.Reply(w, http.StatusOK, nil)
}

// writable returns dockerd's error for a path that a container mounts read-only.
func writable(c core.Container, readOnlyRoot bool, p string) error {
	p = path.Clean("/" + p)
	best, readOnly, mounted := "", readOnlyRoot, false
	check := func(target string, ro bool) {
		if (p == target || strings.HasPrefix(p, target+"/")) && len(target) > len(best) {
			best, readOnly, mounted = target, ro, true
		}
	}
	for _, v := range c.Config.Volumes {
		check(v.Target, v.ReadOnly)
	}
	for _, b := range solo.RecordOf(c).Settings.Binds {
		check(b.Target, b.ReadOnly)
	}
	switch {
	case readOnly && mounted:
		return invalid.Plainf("mounted volume is marked read-only")
	case readOnly:
		return invalid.Plainf("container rootfs is marked read-only")
	}
	return nil
}

// change is a file that differs from the image's.
type change struct {
	Path string
	Kind int
}

func (a files) changes(w http.ResponseWriter, r *dockerhttp.Request) error {
	c, err := a.f.find(r.Context(), r.Vars["id"])
	if err != nil {
		return err
	}
	kinds := map[string]int{"C": 0, "A": 1, "D": 2}
	var list []change // null without any
	err = a.f.solo.Changes(r.Context(), c, func(one core.FileChange) error {
		list = append(list, change{one.Path, kinds[one.Kind]})
		return nil
	})
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	return dockerhttp.WriteJSON(w, list)
}

// export sends the files of a container's root, without those of its mounts.
func (a files) export(w http.ResponseWriter, r *dockerhttp.Request) error {
	in, err := a.in(r)
	if err != nil {
		return err
	}
	began := false
	err = in.RunAlone(func(root *os.File) error {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.WriteHeader(http.StatusOK)
		began = true
		return treecopy.PackRoot(w, root, solo.EtcFiles(), in.IDs)
	})
	switch {
	case err != nil && began:
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	case err != nil:
		return err
	}
	a.f.publish(in.Container, "export", nil)
	return nil
}
