package images

import (
	"context"
	"net/http"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
)

// saveNamed answers GET /images/get.
func (s *Server) saveNamed(w http.ResponseWriter, r *dockerhttp.Request) error {
	names := r.Values()["names"]
	if len(names) == 0 {
		return invalid.Plainf("name at least one image")
	}
	return s.save(w, r, names)
}

// saveOne answers GET /images/NAME/get.
func (s *Server) saveOne(w http.ResponseWriter, r *dockerhttp.Request) error {
	return s.save(w, r, []string{r.Vars["name"]})
}

// save sends one archive of images. A name without a tag means all tags of its repository.
func (s *Server) save(w http.ResponseWriter, r *dockerhttp.Request, names []string) error {
	var refs []string
	saved := map[string]core.Image{}
	for _, name := range names {
		list, err := s.named(r.Context(), name)
		if err != nil {
			return err
		}
		for _, f := range list {
			if err := checkPlatform(r, name, f.Image); err != nil {
				return err
			}
			refs, saved[f.ID.String()] = append(refs, f.ref()), f.Image
		}
	}
	out := &archiveWriter{w: w}
	if err := s.Transfers.Export(r.Context(), s.Owner, refs, out); err != nil {
		if !out.began {
			return err
		}
		panic(http.ErrAbortHandler) // the client must see that the archive is not whole
	}
	for id, img := range saved {
		s.publish("save", id, id, img.Config.Config.Labels)
	}
	return nil
}

// named returns the images of a name: those of all tags of a repository, or one.
func (s *Server) named(ctx context.Context, text string) ([]found, error) {
	if named, err := s.parse(text); err == nil && reference.IsNameOnly(named) {
		names, images, err := s.tagsOf(ctx, named)
		if err != nil {
			return nil, err
		}
		var list []found
		for _, n := range names {
			list = append(list, found{images[n], n})
		}
		if len(list) > 0 {
			return list, nil
		}
	}
	f, err := s.find(ctx, text)
	if errdefs.IsNotFound(err) {
		err = noImage(text)
	}
	return []found{f}, err
}

// archiveWriter sends the header with the first byte.
type archiveWriter struct {
	w     http.ResponseWriter
	began bool
}

// Write implements io.Writer.
func (a *archiveWriter) Write(p []byte) (int, error) {
	if !a.began {
		a.began = true
		a.w.Header().Set("Content-Type", "application/x-tar")
		a.w.WriteHeader(http.StatusOK)
	}
	return a.w.Write(p)
}

// load answers POST /images/load. The archive goes to the store as it comes. As in dockerd, errors come in the stream.
func (s *Server) load(w http.ResponseWriter, r *dockerhttp.Request) error {
	want, err := platformOf(r)
	if err != nil {
		return err
	}
	if want != nil && !platforms.Default().Match(*want) {
		return errdefs.ErrNotImplemented.WithMessage("this node loads images of its own platform only, " + platforms.DefaultString() +
			", and not of " + platforms.FormatAll(*want))
	}
	out := dockerhttp.NewStream(w)
	list, err := s.Transfers.Import(r.Context(), s.Owner, r.Body, core.ImportOptions{})
	if err == nil {
		err = s.Engine.Images.Added(list...)
	}
	if err != nil {
		out.Fail(err)
		return nil
	}
	for _, img := range list {
		id := img.ID.String()
		s.publish("load", id, id, img.Config.Config.Labels)
		lines := []string{"Loaded image ID: " + id + "\n"}
		if len(img.Names) > 0 {
			lines = nil
		}
		for _, n := range img.Names {
			lines = append(lines, "Loaded image: "+familiar(n)+"\n")
		}
		for _, l := range lines {
			if err := out.Send(dockertypes.Progress{Stream: l}); err != nil {
				return nil //nolint:nilerr // the client is gone
			}
		}
	}
	return nil
}
