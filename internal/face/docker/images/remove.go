package images

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
)

// tag answers POST /images/NAME/tag.
func (s *Server) tag(w http.ResponseWriter, r *dockerhttp.Request) error {
	named, err := s.parseNew(r.Get("repo"), r.Get("tag"))
	if err != nil {
		return err
	}
	if named == nil {
		if named, err = s.parse(""); err != nil { // for docker's text
			return err
		}
	}
	img, err := s.find(r.Context(), r.Vars["name"])
	if err != nil {
		return err
	}
	if err := s.Engine.Images.Tag(r.Context(), img.ref(), named.String()); err != nil {
		return err
	}
	s.publish("tag", img.ID.String(), familiar(named.String()), img.Config.Config.Labels)
	return dockerhttp.Reply(w, http.StatusCreated, nil)
}

// remove answers DELETE /images/NAME: it removes a name, and with the last one the image.
func (s *Server) remove(w http.ResponseWriter, r *dockerhttp.Request) error {
	text := r.Vars["name"]
	img, err := s.find(r.Context(), text)
	if err != nil && !errdefs.IsDataLoss(err) { // a damaged image can be removed
		return err
	}
	users, err := s.users(r.Context())
	if err != nil {
		return err
	}
	users = slices.DeleteFunc(users, func(u User) bool { return u.Image != img.ID })
	if img.name != "" {
		err = removableName(text, img.Image, users, r.Bool("force"))
	} else {
		err = removableID(img.Image, users, r.Bool("force"))
	}
	if err != nil {
		return err
	}
	running := slices.ContainsFunc(users, func(u User) bool { return u.Running })
	list, err := s.removed(r.Context(), img, running)
	if err != nil {
		return err
	}
	return dockerhttp.Reply(w, http.StatusOK, list)
}

// removableName returns a conflict, in docker's words, if a container uses the image and this is its last name.
func removableName(text string, img core.Image, users []User, force bool) error {
	if force || len(users) == 0 || !oneName(img) {
		return nil
	}
	return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("conflict: unable to remove repository reference %q (must force) - container %s is using its referenced image %s",
		text, short(users[0].ID), short(img.ID.Encoded())))
}

// removableID returns a conflict, in docker's words, if an image that is named by its ID is in use, or has several names.
func removableID(img core.Image, users []User, force bool) error {
	conflict := func(how, why string) error {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("conflict: unable to delete %s (%s) - %s", short(img.ID.Encoded()), how, why))
	}
	if i := slices.IndexFunc(users, func(u User) bool { return u.Running }); i >= 0 {
		return conflict("cannot be forced", "image is being used by running container "+short(users[i].ID))
	}
	switch {
	case force:
		return nil
	case !oneName(img):
		return conflict("must be forced", "image is referenced in multiple repositories")
	case len(users) > 0:
		return conflict("must be forced", "image is being used by stopped container "+short(users[0].ID))
	}
	return nil
}

// oneName reports whether an image has at most one tag, and no digest of another repository than that tag's.
func oneName(img core.Image) bool {
	repos := map[string]bool{}
	for _, n := range slices.Concat(img.Names, img.Digests) {
		repos[repository(n)] = true
	}
	return len(img.Names) <= 1 && len(repos) <= 1
}

// removed removes a name, or all names of an image, and returns the removed objects. An image of a running container is kept
// without a name.
func (s *Server) removed(ctx context.Context, img found, running bool) ([]dockertypes.ImageDeletion, error) {
	before := slices.Concat(img.Names, img.Digests)
	if running && oneName(img.Image) {
		if err := s.Engine.Images.Tag(ctx, img.ref(), ""); err != nil {
			return nil, err
		}
	}
	if err := s.Engine.Images.Remove(ctx, img.ref()); err != nil {
		return nil, err
	}
	left, err := s.Engine.Images.Get(ctx, img.ID.String())
	gone := errdefs.IsNotFound(err)
	if err != nil && !gone && !errdefs.IsDataLoss(err) {
		return nil, err
	}
	still := slices.Concat(left.Names, left.Digests)
	before = slices.DeleteFunc(before, func(n string) bool { return slices.Contains(still, n) })
	others := map[digest.Digest]int{}
	if gone {
		list, err := s.Engine.Images.List(ctx)
		if err != nil {
			return nil, err
		}
		others = layerUses(list)
	}
	return s.deletions(img.Image, before, gone, others), nil
}

// deletions returns the answer for names that were removed, and for the image and its layers if it is gone, and sends their events.
// others counts the uses of layers by the images that are left.
func (s *Server) deletions(img core.Image, names []string, gone bool, others map[digest.Digest]int) []dockertypes.ImageDeletion {
	id, labels := img.ID.String(), img.Config.Config.Labels
	list := []dockertypes.ImageDeletion{}
	for _, n := range names {
		list = append(list, dockertypes.ImageDeletion{Untagged: familiar(n)})
		if !strings.Contains(n, "@") {
			s.publish("untag", id, id, labels)
		}
	}
	if !gone {
		return list
	}
	s.publish("delete", id, id, labels)
	list = append(list, dockertypes.ImageDeletion{Deleted: id})
	layers := chains(img)
	for i := len(layers) - 1; i >= 0 && others[layers[i]] == 0; i-- {
		list = append(list, dockertypes.ImageDeletion{Deleted: layers[i].String()})
	}
	return list
}

// prune answers POST /images/prune. Without filters it removes images without a tag; none that a container uses.
func (s *Server) prune(w http.ResponseWriter, r *dockerhttp.Request) error {
	filters, err := r.Filters("dangling", "label", "label!", "until")
	if err != nil {
		return err
	}
	dangling, set, err := filters.Bool("dangling")
	if err != nil {
		return err
	}
	dangling = dangling || !set
	delete(filters, "dangling")
	keep, err := s.wanted(r.Context(), filters)
	if err != nil {
		return err
	}
	var pruned []core.Image
	freed, err := s.Engine.Images.Prune(r.Context(), func(img core.Image) bool {
		if dangling && len(img.Names) > 0 || !keep(&img) {
			return true
		}
		pruned = append(pruned, img)
		return false
	})
	if err != nil {
		return err
	}
	out := dockertypes.ImagesPruned{SpaceReclaimed: freed}
	if len(pruned) > 0 {
		left, err := s.Engine.Images.List(r.Context())
		if err != nil {
			return err
		}
		others := layerUses(left)
		for _, img := range pruned {
			out.ImagesDeleted = append(out.ImagesDeleted, s.deletions(img, slices.Concat(img.Names, img.Digests), true, others)...)
			for _, c := range chains(img) {
				others[c]++ // a layer is deleted once
			}
		}
	}
	if s.Publish != nil {
		s.Publish("image", "prune", "", map[string]string{"reclaimed": strconv.FormatUint(freed, 10)})
	}
	return dockerhttp.Reply(w, http.StatusOK, out)
}
