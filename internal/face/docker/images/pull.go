package images

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
)

// create answers POST /images/create: a pull, or the import of a root file system.
func (s *Server) create(w http.ResponseWriter, r *dockerhttp.Request) error {
	if p := r.Get("platform"); p != "" {
		if _, err := platforms.Parse(p); err != nil {
			return invalid.Plainf("%w", err)
		}
	}
	switch src := r.Get("fromSrc"); {
	case r.Get("fromImage") != "":
		return s.pull(w, r)
	case src == "-":
		return s.importRoot(w, r)
	case src != "":
		return errdefs.ErrNotImplemented.WithMessage("this node imports from no URL: use curl -L URL | docker import - NAME")
	}
	return invalid.Plainf("fromImage or fromSrc is missing")
}

// pull fetches an image, or without a tag all images of a repository. The first byte is sent once the registry has said that the image
// exists, so that an error before has a status.
func (s *Server) pull(w http.ResponseWriter, r *dockerhttp.Request) error {
	named, err := s.parseTagged(strings.TrimSuffix(r.Get("fromImage"), ":"), r.Get("tag"))
	if err != nil {
		return err
	}
	if reference.FamiliarName(named) == "scratch" {
		return errdefs.ErrPermissionDenied.WithMessage("'scratch' is a reserved name")
	}
	all := []reference.Named{named}
	if reference.IsNameOnly(named) {
		if all, err = s.everyTag(r, named); err != nil {
			return registryFault(named, err)
		}
	}
	out := dockerhttp.NewStream(w)
	text, labels, warnings := "Image is up to date for ", map[string]string(nil), []string(nil)
	for _, n := range all {
		img, newer, err := s.pullOne(r, out, n)
		if err != nil {
			err = registryFault(n, err)
			if !out.Began() {
				return err
			}
			out.Fail(err)
			return nil
		}
		if newer {
			text = "Downloaded newer image for "
		}
		labels = img.Config.Config.Labels
		if p, err := platforms.Parse(r.Get("platform")); err == nil && !platforms.OnlyStrict(p).Match(img.Config.Platform) {
			warnings = append(warnings, "WARNING: "+otherPlatform(reference.FamiliarString(n), img, p))
		}
	}
	s.publish("pull", reference.FamiliarString(named), reference.FamiliarName(named), labels)
	for _, l := range slices.Insert(warnings, 0, "Status: "+text+reference.FamiliarString(named)) {
		if err := out.Send(dockertypes.Progress{Status: l}); err != nil {
			return nil //nolint:nilerr // the client is gone
		}
	}
	return nil
}

// everyTag asks the registry for the tags of a repository.
func (s *Server) everyTag(r *dockerhttp.Request, repo reference.Named) (list []reference.Named, err error) {
	tags, err := s.Transfers.Tags(r.Context(), repo.Name(), pullOptions(r))
	if err != nil {
		return nil, err
	}
	for _, tag := range tags {
		named, err := reference.WithTag(repo, tag)
		if err != nil {
			return nil, fmt.Errorf("the registry lists the tag %.200q: %w", tag, err)
		}
		list = append(list, named)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("the registry lists no tags of %s: %w", repo.Name(), errdefs.ErrNotFound)
	}
	return list, nil
}

// pullOne fetches an image, shows its progress and its digest, and reports whether it is another one than before.
func (s *Server) pullOne(r *dockerhttp.Request, out *dockerhttp.Stream, named reference.Named) (img core.Image, newer bool, err error) {
	before, err := s.Engine.Images.Get(r.Context(), named.String())
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsDataLoss(err) {
		return core.Image{}, false, err
	}
	shown := follow(out, pullWords, dockertypes.Progress{Status: "Pulling from " + reference.Path(named), ID: selector(named)})
	shown.moving = true
	opts := pullOptions(r)
	opts.Platform, opts.Always, opts.Progress = r.Get("platform"), true, shown.step
	img, err = s.Engine.Images.Pull(r.Context(), named.String(), opts)
	shown.finish()
	if err != nil {
		return core.Image{}, false, err
	}
	if d := digestFor(named, before, img); d != "" {
		_ = out.Send(dockertypes.Progress{Status: "Digest: " + d}) // if the client is gone, the next message fails, too
	}
	return img, before.ID != img.ID, nil
}

// pullOptions returns the request's credentials for a registry.
func pullOptions(r *dockerhttp.Request) core.PullOptions {
	c := r.Auth()
	return core.PullOptions{Username: c.Username, Password: c.Password, Token: c.IdentityToken, Bearer: c.RegistryToken}
}

// selector returns a name's tag or digest.
func selector(named reference.Named) string {
	switch n := named.(type) {
	case reference.Digested:
		return n.Digest().String()
	case reference.Tagged:
		return n.Tag()
	}
	return ""
}

// digestFor returns the digest under which the registry has a pulled image; "" if it is not known.
func digestFor(named reference.Named, before, img core.Image) string {
	if d, ok := named.(reference.Digested); ok {
		return d.Digest().String()
	}
	found := ""
	for _, name := range img.Digests {
		repo, d, _ := strings.Cut(name, "@")
		if repo == named.Name() && (found == "" || !slices.Contains(before.Digests, name)) {
			found = d
		}
	}
	return found
}

// registryFault gives an error of a transfer the class and the words that clients know.
func registryFault(named reference.Named, err error) error {
	text, name := dockerhttp.Text(err), reference.FamiliarName(named)
	denied := strings.Contains(text, "DENIED")
	switch {
	case errors.Is(err, core.ErrImageRefused):
		return errdefs.ErrPermissionDenied.WithMessage(text)
	case errdefs.IsPermissionDenied(err), errdefs.IsUnauthorized(err) && denied:
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("pull access denied for %s, repository does not exist or may require 'docker login': %s", name, text))
	case errdefs.IsNotFound(err) && strings.Contains(text, "NAME_UNKNOWN"):
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("repository %s not found: %s", name, text))
	case errdefs.IsNotFound(err) && strings.Contains(text, "404"):
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("manifest for %s not found: manifest unknown: %s", reference.FamiliarString(named), text))
	}
	return transferFault(err)
}

// transferFault gives an error of a transfer the class of dockerd's status: 500 if a registry cannot be reached or refuses a
// request.
func transferFault(err error) error {
	switch {
	case errdefs.IsNotFound(err), errdefs.IsUnauthorized(err), errdefs.IsInvalidArgument(err), errdefs.IsNotImplemented(err), errdefs.IsResourceExhausted(err):
		return err
	}
	return errors.New(dockerhttp.Text(err))
}

// importRoot makes an image of the root file system in the request's body.
func (s *Server) importRoot(w http.ResponseWriter, r *dockerhttp.Request) error {
	named, err := s.parseNew(r.Get("repo"), r.Get("tag"))
	if err != nil {
		return err
	}
	if p, err := platforms.Parse(r.Get("platform")); err == nil && p.OS != "linux" {
		return invalid.Plainf("operating system is not supported")
	}
	opts := core.RootImport{Message: r.Get("message"), Changes: r.Values()["changes"], Platform: r.Get("platform")}
	if named != nil {
		opts.Name = named.String()
	}
	if opts.Message == "" {
		opts.Message = "Imported from -"
	}
	img, err := s.Transfers.ImportRoot(r.Context(), s.Owner, r.Body, opts)
	if err == nil {
		err = s.Engine.Images.Added(img)
	}
	if err != nil {
		return err
	}
	s.publish("import", img.ID.String(), img.ID.String(), img.Config.Config.Labels)
	_ = dockerhttp.NewStream(w).Send(dockertypes.Progress{Status: img.ID.String()}) // the client may be gone
	return nil
}

// distribution answers GET /distribution/NAME/json by asking the registry.
func (s *Server) distribution(w http.ResponseWriter, r *dockerhttp.Request) error {
	named, err := s.parse(r.Vars["name"])
	if err != nil {
		return err
	}
	named = reference.TagNameOnly(named)
	remote, err := s.Transfers.Resolve(r.Context(), named.String(), pullOptions(r))
	if err != nil {
		return registryFault(named, err)
	}
	doc := dockertypes.RemoteImage{
		Descriptor: dockertypes.Descriptor{MediaType: remote.Target.MediaType, Digest: remote.Target.Digest.String(), Size: remote.Target.Size},
		Platforms:  []dockertypes.Platform{},
	}
	for _, p := range remote.Platforms {
		doc.Platforms = append(doc.Platforms, dockertypes.Platform{
			Architecture: p.Architecture, OS: p.OS, OSVersion: p.OSVersion, OSFeatures: p.OSFeatures, Variant: p.Variant,
		})
	}
	return dockerhttp.Reply(w, http.StatusOK, doc)
}

// push answers POST /images/NAME/push. As in dockerd, errors come in the stream.
func (s *Server) push(w http.ResponseWriter, r *dockerhttp.Request) error {
	named, err := s.parseTagged(r.Vars["name"], r.Get("tag"))
	if err != nil {
		return err
	}
	if _, err := platformOf(r); err != nil {
		return err
	}
	out := dockerhttp.NewStream(w)
	if err := out.Send(dockertypes.Progress{Status: "The push refers to repository [" + named.Name() + "]"}); err != nil {
		return nil //nolint:nilerr // the client is gone
	}
	names, images, err := s.pushed(r.Context(), named)
	for i := 0; i < len(names) && err == nil; i++ {
		img := images[names[i]]
		if err = checkPlatform(r, familiar(names[i]), img); err == nil {
			err = s.pushOne(r, out, names[i], img)
		}
	}
	if errdefs.IsUnauthorized(err) {
		err = errors.New("unauthorized: authentication required: " + dockerhttp.Text(err))
	}
	if err != nil {
		out.Fail(err)
	}
	return nil
}

// pushed returns the names to push: one with a tag, or all of a repository.
func (s *Server) pushed(ctx context.Context, named reference.Named) (names []string, images map[string]core.Image, err error) {
	names, images, err = s.tagsOf(ctx, named)
	switch {
	case err != nil:
		return nil, nil, err
	case len(names) == 0:
		return nil, nil, errdefs.ErrNotFound.WithMessage("An image does not exist locally with the tag: " + reference.FamiliarName(named))
	case reference.IsNameOnly(named):
		return names, images, nil
	}
	if _, ok := named.(reference.Digested); ok {
		return nil, nil, invalid.Plainf("cannot push a digest reference")
	}
	if !slices.Contains(names, named.String()) {
		return nil, nil, errdefs.ErrNotFound.WithMessage("tag does not exist: " + reference.FamiliarString(named))
	}
	return []string{named.String()}, images, nil
}

func (s *Server) pushOne(r *dockerhttp.Request, out *dockerhttp.Stream, name string, img core.Image) error {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return err
	}
	shown := follow(out, pushWords)
	shown.skip = img.ID
	c := r.Auth()
	err = s.Transfers.Push(r.Context(), s.Owner, name, core.PushOptions{
		Target: name, Username: c.Username, Password: c.Password, Token: c.IdentityToken, Bearer: c.RegistryToken, Progress: shown.step,
	})
	shown.finish()
	if err != nil {
		return err
	}
	tag, d := selector(named), img.Digest.String()
	s.publish("push", reference.FamiliarString(named), reference.FamiliarName(named), img.Config.Config.Labels)
	if err := out.Send(dockertypes.Progress{Status: fmt.Sprintf("%s: digest: %s size: %d", tag, d, img.ManifestSize)}); err != nil {
		return err
	}
	return out.Send(dockertypes.Progress{Progress: &dockertypes.ProgressDetail{}, Aux: dockertypes.Pushed{Tag: tag, Digest: d, Size: img.ManifestSize}})
}
