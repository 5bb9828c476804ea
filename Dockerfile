# An image with drainmw, and nothing of yours in it yet. Build on top of it:
#
#   FROM drainmw
#   COPY . /app
#   CMD ["main:app"]
#
# What your app needs is installed into the same environment, /opt/drainmw:
# USER root, RUN pip --python /opt/drainmw/bin/python install ..., USER 10001.

FROM python:3.13-slim AS build
WORKDIR /src
COPY requirements/build.txt requirements/runtime.txt requirements/
RUN python -m venv --without-pip /opt/drainmw \
    && pip --python /opt/drainmw/bin/python install --no-cache-dir \
        --require-hashes -r requirements/runtime.txt \
    && pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-build-isolation --no-deps --wheel-dir /wheels . \
    && pip --python /opt/drainmw/bin/python install --no-cache-dir --no-deps \
        /wheels/drainmw-*.whl

FROM python:3.13-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin drainmw
COPY --from=build /opt/drainmw /opt/drainmw
ENV PATH=/opt/drainmw/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PORT=8000
WORKDIR /app
# By number: Kubernetes' runAsNonRoot cannot judge a name.
USER 10001:10001
EXPOSE 8000

# Liveness, since it stays 200 while a drain runs. PORT only tells this check
# where to look: a --port other than 8000 goes with a PORT of the same number.
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s CMD ["python", "-I", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('PORT', '8000')), timeout=2); c.request('GET', '/livez'); sys.exit(c.getresponse().status != 200)"]

# The command runs as process 1 without a shell, so the signal reaches it.
# Stop with more patience than lame duck, drain timeout and 3 s together.
STOPSIGNAL SIGTERM
ENTRYPOINT ["drainmw", "serve", "--host", "0.0.0.0"]
