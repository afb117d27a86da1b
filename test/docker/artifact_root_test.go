package docker_test

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestArtifactsOfDockersAPI pulls an OCI artifact, mounts it and one of its files, and refuses it as a container's image.
func TestArtifactsOfDockersAPI(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		_, _, must := ourSide(t)
		ref := imagetest.NewRegistry(t).Push("team/model", "v1", imagetest.Artifact{Type: "application/vnd.example", Files: []imagetest.ArtifactFile{
			{Title: "a", Body: []byte("a\n")}, {Path: "d/b", Body: []byte("b\n")},
		}}.Build())
		must(200, step{do: "POST /images/create?fromImage=" + ref})
		must(200, step{do: "GET /images/json"})
		must(200, step{do: "GET /images/" + ref + "/json"})
		must(200, step{do: "GET /images/" + ref + "/history"})
		must(200, step{do: "GET /distribution/" + ref + "/json"})
		must(200, step{do: "GET /system/df"})
		must(201, step{do: "POST /containers/create?name=user", body: `{"Image":"box","Tty":true,"Cmd":["sh","-c","cat /model/a /model/d/b /etc/b; touch /model/x || echo refused"],
			"HostConfig":{"Mounts":[{"Type":"image","Source":"` + ref + `","Target":"/model"},
			{"Type":"image","Source":"` + ref + `","Target":"/etc/b","ImageOptions":{"Subpath":"d/b"}}]}}`})
		must(204, step{do: "POST /containers/user/start"})
		must(200, step{do: "POST /containers/user/wait"})
		if r := must(200, step{do: "GET /containers/user/logs?stdout=1"}); !strings.Contains(string(r.body), "a\r\nb\r\nb\r\n") || !strings.Contains(string(r.body), "refused") {
			t.Errorf("%q", r.body)
		}
		must(204, step{do: "DELETE /containers/user"})
		if r := must(400, step{do: "POST /containers/create?name=root", body: `{"Image":"` + ref + `","Cmd":["sh"]}`}); !strings.Contains(string(r.body), "it is an artifact (application/vnd.example)") {
			t.Errorf("%s", r.body)
		}
		must(404, step{do: "GET /containers/root/json"})
		must(200, step{do: "DELETE /images/" + ref})
	})
}
