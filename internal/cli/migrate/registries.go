package migrate

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Dir is the directory of the agent's configuration, and of the files that are written beside it.
const Dir = "/etc/longshore"

// registries translates containerd's settings of registries.
func registries(r *Result, name string, t table) {
	if v, ok := t["config_path"]; ok {
		hostDirs(r, name+".config_path", v)
	}
	hosts := map[string]*registry{}
	host := func(h string) *registry {
		if h == "*" {
			h = "_default"
		}
		if hosts[h] == nil {
			hosts[h] = &registry{}
		}
		return hosts[h]
	}
	mirrors, _ := t["mirrors"].(table)
	for h, v := range mirrors {
		m, _ := v.(table)
		for _, url := range texts(m["endpoint"]) {
			host(h).mirrors = append(host(h).mirrors, mirror{url: url})
		}
	}
	logins := map[string]login{}
	configs, _ := t["configs"].(table)
	for h, v := range configs {
		c, _ := v.(table)
		if auth, ok := c["auth"].(table); ok {
			logins[h] = loginOf(auth)
		}
		tls, ok := c["tls"].(table)
		if !ok {
			continue
		}
		own := mirror{url: "https://" + h}
		own.ca, _ = tls["ca_file"].(string)
		own.cert, _ = tls["cert_file"].(string)
		own.key, _ = tls["key_file"].(string)
		own.insecure, _ = tls["insecure_skip_verify"].(bool)
		used := false // a mirror's settings stand with each registry that uses it
		for _, x := range hosts {
			for i, m := range x.mirrors {
				if strings.TrimPrefix(strings.TrimPrefix(m.url, "https://"), "http://") == h {
					own.url, used = m.url, true
					x.mirrors[i] = own
				}
			}
		}
		if !used {
			host(h).mirrors = append(host(h).mirrors, own)
		}
	}
	auths, _ := t["auths"].(table)
	for h, v := range auths {
		if auth, ok := v.(table); ok {
			logins[strings.TrimPrefix(strings.TrimPrefix(h, "https://"), "http://")] = loginOf(auth)
		}
	}
	writeHosts(r, name, hosts)
	writeLogins(r, name, logins)
	h, _ := t["headers"].(table)
	if delete(h, "User-Agent"); len(h) > 0 {
		r.note(name+".headers", "set headers in the hosts.toml of each registry")
	}
}

// hostDirs translates the list of directories with hosts.toml files.
func hostDirs(r *Result, key string, v any) {
	text, _ := v.(string)
	if text == "" {
		return
	}
	var dirs []any
	for d := range strings.SplitSeq(text, ":") {
		if d != "" {
			dirs = append(dirs, d)
		}
	}
	r.set(key, "images.registry_config", dirs)
}

// registry has the settings of one registry.
type registry struct {
	mirrors []mirror
	server  string // where it is, if not where its name says
	blocked bool
}

// mirror is one place that serves a registry's images.
type mirror struct {
	url           string
	ca, cert, key string
	insecure      bool
	digests       bool // it serves images by digest only
}

// writeHosts adds a hosts.toml for each registry. The agent searches the directory before its others.
func writeHosts(r *Result, key string, hosts map[string]*registry) {
	wrote := false
	for _, h := range slices.Sorted(maps.Keys(hosts)) {
		if h == "" || strings.ContainsAny(h, "/\\") || h == "." || h == ".." {
			r.note(key, "%q is no name of a registry", h)
			continue
		}
		x := hosts[h]
		if x.blocked {
			continue
		}
		var b strings.Builder
		if x.server != "" {
			fmt.Fprintf(&b, "server = %s\n", quoted(x.server))
		}
		for _, m := range x.mirrors {
			url := strings.TrimSuffix(m.url, "/")
			if !strings.Contains(url, "://") {
				url = "https://" + url
			}
			fmt.Fprintf(&b, "\n[host.%s]\n", quoted(url))
			if b.WriteString("capabilities = [\"pull\", \"resolve\"]\n"); m.digests {
				r.note(key, "%s serves %s by digest only there; here it is asked for tags too", url, h)
			}
			if m.ca != "" {
				fmt.Fprintf(&b, "ca = %s\n", quoted(m.ca))
			}
			if m.cert != "" {
				fmt.Fprintf(&b, "client = [[%s, %s]]\n", quoted(m.cert), quoted(m.key))
			}
			if m.insecure {
				b.WriteString("skip_verify = true\n")
			}
			if _, rest, _ := strings.Cut(url, "://"); strings.Contains(rest, "/") { // the path is the whole prefix
				b.WriteString("override_path = true\n")
			}
		}
		r.Files = append(r.Files, File{Name: path.Join(Dir, "certs.d", h, "hosts.toml"), Body: []byte(strings.TrimPrefix(b.String(), "\n")), Mode: 0o644})
		wrote = true
	}
	if !wrote {
		return
	}
	dirs := []any{Dir + "/certs.d"}
	for _, s := range r.Settings {
		if old, ok := s.Value.([]any); ok && strings.Join(s.Path, ".") == "images.registry_config" && !slices.Contains(old, dirs[0]) {
			dirs = append(dirs, old...)
		}
	}
	r.set(key, "images.registry_config", dirs)
}

// login is a user of a registry.
type login struct{ user, password, token string }

func loginOf(t table) (l login) {
	l.user, _ = t["username"].(string)
	l.password, _ = t["password"].(string)
	l.token, _ = t["identitytoken"].(string)
	if text, _ := t["auth"].(string); text != "" {
		if b, err := base64.StdEncoding.DecodeString(strings.TrimRight(text, "\x00")); err == nil {
			l.user, l.password, _ = strings.Cut(string(b), ":")
		}
	}
	return l
}

// writeLogins adds a docker config.json of the logins.
func writeLogins(r *Result, key string, logins map[string]login) {
	auths := map[string]any{}
	for h, l := range logins {
		entry := map[string]string{}
		if l.user != "" {
			entry["auth"] = base64.StdEncoding.EncodeToString([]byte(l.user + ":" + l.password))
		}
		if l.token != "" {
			entry["identitytoken"] = l.token
		}
		if len(entry) == 0 {
			continue
		}
		if h == "docker.io" || h == "registry-1.docker.io" {
			h = "https://index.docker.io/v1/"
		}
		auths[h] = entry
	}
	if len(auths) == 0 {
		return
	}
	body, err := json.MarshalIndent(map[string]any{"auths": auths}, "", "  ")
	if err != nil {
		r.note(key, "its logins cannot be written: %v", err)
		return
	}
	name := Dir + "/registries.json"
	r.Files = append(r.Files, File{Name: name, Body: append(body, '\n'), Mode: 0o600})
	r.set(key, "images.docker_config", name)
}

// containersRegistries translates a registries.conf of containers/image, version 2.
func containersRegistries(r *Result, key string, t table) {
	hosts := map[string]*registry{}
	list, _ := t["registry"].([]any)
	for _, v := range list {
		e, _ := v.(table)
		prefix, _ := e["prefix"].(string)
		location, _ := e["location"].(string)
		if prefix == "" {
			prefix = location
		}
		if prefix == "" {
			continue
		}
		x := &registry{}
		x.blocked, _ = e["blocked"].(bool)
		insecure, _ := e["insecure"].(bool)
		if x.blocked {
			blocked(r, key, prefix)
			continue
		}
		if strings.Contains(prefix, "/") || strings.HasPrefix(prefix, "*.") || strings.Contains(location, "/") && location != prefix {
			r.note(key, "registry %s: mirrors are chosen by the host of an image here, not by parts of its path or its domain", prefix)
			continue
		}
		mirrors, _ := e["mirror"].([]any)
		digests, _ := e["mirror-by-digest-only"].(bool)
		for _, v := range mirrors {
			m, _ := v.(table)
			to, _ := m["location"].(string)
			if to == "" {
				continue
			}
			skip, _ := m["insecure"].(bool)
			pull, _ := m["pull-from-mirror"].(string)
			x.mirrors = append(x.mirrors, mirror{url: withPrefix(to), insecure: skip, digests: digests || pull == "digest-only"})
		}
		switch {
		case insecure:
			x.mirrors = append(x.mirrors, mirror{url: "https://" + location, insecure: true})
		case location != prefix && location != "":
			x.server = "https://" + location
		case len(x.mirrors) == 0:
			continue // nothing differs from the usual
		}
		hosts[prefix] = x
	}
	writeHosts(r, key, hosts)
	if names := texts(t["unqualified-search-registries"]); len(names) > 0 {
		if len(names) > 1 {
			r.note(key, "unqualified-search-registries: only the first of %s completes short names here", strings.Join(names, ", "))
		}
		if names[0] != "docker.io" {
			r.set(key+" unqualified-search-registries", "images.default_registry", names[0])
		}
	}
	if v, _ := t["short-name-mode"].(string); v == "enforcing" {
		r.note(key, "short-name-mode: a short name is always completed here; use whole names")
	}
	if aliases, ok := t["aliases"].(table); ok && len(aliases) > 0 {
		r.note(key, "aliases: short names have no aliases here; use whole names")
	}
}

// withPrefix returns the URL of a mirror. A path of its location precedes the path of the image.
func withPrefix(location string) string {
	host, rest, ok := strings.Cut(location, "/")
	if !ok {
		return "https://" + host
	}
	return "https://" + host + "/v2/" + rest
}

// blocked adds a rule that rejects the images of a registry.
func blocked(r *Result, key, prefix string) {
	pattern := prefix
	if !strings.Contains(prefix, "/") {
		pattern += "/**"
	} else {
		pattern = strings.TrimSuffix(pattern, "/") + "/**"
	}
	if strings.HasPrefix(prefix, "*.") {
		r.note(key, "registry %s is blocked: add a rule for each of its hosts to images.policy.rules", prefix)
		return
	}
	rules := []any{}
	for _, s := range r.Settings {
		if strings.Join(s.Path, ".") == "images.policy.rules" {
			rules, _ = s.Value.([]any)
		}
	}
	r.set(key, "images.policy.rules", append(slices.Clone(rules), map[string]any{"match": []any{pattern}, "verdict": "reject"}))
}
