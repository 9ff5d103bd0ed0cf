"""Errors of Hadoop's connector for S3 are errors of storage: with the path and the reason."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkException

from icefloe.errors import StatementError, StorageError
from icefloe.spark.errors import translate_spark_errors
from icefloe.storage.s3 import with_advice

OWN = "s3a-0123456789ab://lake/t/data/a.parquet"
REFUSED = (
    f"{OWN}: getFileStatus on {OWN}: software.amazon.awssdk.services.s3.model.S3Exception: not you "
    "(Service: S3, Status Code: 403, Request ID: null) (SDK Attempt Count: 1):AccessDenied: not you"
)
RESET = (
    f"listObjects() on {OWN}: software.amazon.awssdk.core.exception.SdkClientException: Unable to "
    "execute HTTP request: Connection reset (SDK Attempt Count: 1):    software.amazon.awssdk"
)


class Chained(PySparkException):
    """As PySpark has errors of the JVM: with their causes."""

    def __init__(self, message: str, condition: str = "", cause: Exception | None = None) -> None:
        super().__init__(message)
        self._condition, self._cause = condition, cause

    def getCondition(self) -> str:
        return self._condition

    def getMessageParameters(self) -> dict[str, str]:
        return {}


def raised(error: Exception) -> StorageError:
    with pytest.raises(StorageError) as caught, translate_spark_errors():
        raise error
    return caught.value


@pytest.mark.parametrize("kind", [Chained, AnalysisException])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (REFUSED, "AccessDenied: not you"),
        (RESET, "Unable to execute HTTP request: Connection reset"),
    ],
)
def test_the_path_and_the_reason(kind, text, reason):
    expected = f"Spark cannot read s3://lake/t/data/a.parquet: {reason}"
    assert str(raised(kind(text))) == expected


def test_the_cause_of_a_failed_read():
    message = f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {OWN}.  SQLSTATE: 1"
    error = Chained(message, "FAILED_READ_FILE.NO_HINT", Chained("", cause=Chained(REFUSED)))
    assert str(raised(error)).endswith(
        "while reading file s3://lake/t/data/a.parquet. Cause: AccessDenied: not you"
    )


def test_credentials_that_ended():
    text = REFUSED.replace("AccessDenied", "ExpiredToken")
    assert "ExpiredToken: not you. The credentials ended before the work did." in str(
        raised(Chained(text))
    )
    assert with_advice("no such bucket") == "no such bucket"


@pytest.mark.parametrize(
    "reason",
    [
        "Bad Request",
        "When reading information for key 'a' in bucket 'b': AWS Error UNKNOWN (HTTP status 400) "
        "during HeadObject operation: No response body.",
        "An error occurred (400) when calling the HeadObject operation: Bad Request",
    ],
)
def test_an_answer_to_head_has_no_text(reason):
    said = (
        f"{reason.rstrip('.')}. Answers to HEAD have no text: this one means that the credentials"
    )
    assert with_advice(reason).startswith(f"{said} ended before the work did, or that the region")


def test_other_bad_requests_are_of_no_credentials():
    assert with_advice("Bad Request: no such field") == "Bad Request: no such field"


def test_errors_of_other_kinds_stay_what_they_are():
    with pytest.raises(StatementError, match="Division by zero"), translate_spark_errors():
        raise Chained("Division by zero in s3://lake/a")
