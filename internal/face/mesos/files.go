package mesos

import (
	"context"
	"errors"
	"net/http"

	"github.com/containerd/errdefs"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
)

func (s *server) listFiles(_ context.Context, x *api.Exchange) error {
	list, err := s.tree.ListFiles(x.Call.GetListFiles().GetPath())
	if err != nil {
		return fileError(err)
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_LIST_FILES.Enum(), ListFiles: &mesosagent.Response_ListFiles{FileInfos: list}})
}

func (s *server) readFile(_ context.Context, x *api.Exchange) error {
	in := x.Call.GetReadFile()
	size, data, err := s.tree.ReadFile(in.GetPath(), in.GetOffset(), in.Length)
	if err != nil {
		return fileError(err)
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_READ_FILE.Enum(), ReadFile: &mesosagent.Response_ReadFile{Size: &size, Data: data}})
}

func fileError(err error) error {
	switch {
	case errdefs.IsNotFound(err):
		return &api.Error{Code: http.StatusNotFound, Text: "404 Not Found."}
	case errdefs.IsInvalidArgument(err), errors.Is(err, sandbox.ErrDirectory):
		return &api.Error{Code: http.StatusBadRequest, Text: err.Error()}
	}
	return err
}
