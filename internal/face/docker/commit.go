package docker

import (
	"net/http"
	"strings"

	"github.com/distribution/reference"

	"github.com/longshore/longshore/internal/derive"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo"
)

// commit makes an image of a container. Its configuration is the container's, with that of the request's body and with the
// instructions of the parameter changes.
func (f *Face) commit(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := r.Context()
	var body *dockertypes.Config
	if err := r.Decode(&body); err != nil {
		return err
	}
	c, err := f.find(ctx, r.Get("container"))
	if err != nil {
		return err
	}
	own, err := asked(c)
	if err != nil {
		return err
	}
	name, err := commitName(r.Get("repo"), r.Get("tag"))
	if err != nil {
		return err
	}
	req := solo.Commit{
		Image: name, Author: r.Get("author"), Message: r.Get("comment"), Running: !r.BoolOr("pause", true),
		Settings: func(s derive.Settings) error { return commitSettings(s, own.Config, body) },
	}
	for _, text := range r.Values()["changes"] {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" {
				req.Changes = append(req.Changes, line)
			}
		}
	}
	img, err := f.solo.Commit(ctx, c, req)
	if err != nil {
		return err
	}
	attributes := map[string]string{"comment": req.Message, "imageID": string(img.ID)}
	if name != "" {
		attributes["imageRef"] = withTag(name)
	}
	f.publish(c, "commit", attributes)
	return dockerhttp.Reply(w, http.StatusCreated, madeExec{string(img.ID)})
}

// commitName returns the full name of an image; "" without a repository.
func commitName(repo, tag string) (string, error) {
	if repo == "" {
		return "", nil
	}
	named, err := reference.ParseNormalizedNamed(repo)
	if err != nil {
		return "", invalid.Plainf("invalid reference format: %v", err)
	}
	if tag == "" {
		return reference.TagNameOnly(named).String(), nil
	}
	tagged, err := reference.WithTag(reference.TrimNamed(named), tag)
	if err != nil {
		return "", invalid.Plainf("invalid tag format: %v", err)
	}
	return tagged.String(), nil
}

// commitSettings puts a container's configuration into an image's, and over it that of the request.
func commitSettings(s derive.Settings, own, more *dockertypes.Config) error {
	for _, c := range []*dockertypes.Config{own, more} {
		if c == nil {
			continue
		}
		s.Env(c.Env)
		s.Labels(c.Labels)
		if c.Entrypoint != nil || c == own {
			s.Set("Entrypoint", nilIfEmpty(c.Entrypoint))
		}
		if c.Cmd != nil || c == own {
			s.Set("Cmd", nilIfEmpty(c.Cmd))
		}
		for name, v := range map[string]string{"User": c.User, "WorkingDir": c.WorkingDir, "StopSignal": c.StopSignal} {
			if v != "" {
				s.Set(name, v)
			}
		}
		if len(c.Volumes) > 0 {
			s.Set("Volumes", c.Volumes)
		}
		if c.Healthcheck != nil {
			s.Set("Healthcheck", c.Healthcheck)
		}
		var ports []string
		for p := range c.ExposedPorts {
			ports = append(ports, string(p))
		}
		if err := s.Expose(ports); err != nil {
			return err
		}
	}
	return nil
}

func nilIfEmpty(words []string) any {
	if len(words) == 0 {
		return nil
	}
	return words
}
