// Loaded before configurable-http-proxy (node --import): connections to unix sockets stay open between requests.
//
// The proxy keeps connections to TCP addresses only; on a unix socket it asks the server to close. A server that
// answers and closes before the proxy has ended the request, which is one more (empty) write, makes that write fail
// with EPIPE: the answer is lost and the browser sees 503. See nodejs/node#40553.

import http from "node:http";

const agent = new http.Agent({ keepAlive: true });
const request = http.request;

http.request = (options, ...others) => {
  if (!options.socketPath || options.headers?.upgrade) return request(options, ...others);
  return request({ ...options, agent, headers: { ...options.headers, connection: "keep-alive" } }, ...others);
};
